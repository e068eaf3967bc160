#include "core/environment.h"

#include <stdlib.h>
#include <unistd.h>

extern char **environ;

char **environment_without(bool (*drop)(const char *variable))
{
    size_t n = 0, kept = 0;
    while (environ[n])
        n++;
    char **env = malloc((n + 1) * sizeof *env);
    if (!env)
        return NULL;
    for (size_t i = 0; i < n; i++)
        if (!drop(environ[i]))
            env[kept++] = environ[i];
    env[kept] = NULL;
    return env;
}
