#include "core/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

bool program_found(const char *name)
{
    char path[4096];
    const char *folders = getenv("PATH");
    for (const char *p = folders; p; p = strchr(p, ':') ? strchr(p, ':') + 1 : NULL) {
        struct stat st;
        int len = (int)strcspn(p, ":"); /* an empty folder is the working one */
        int n = snprintf(path, sizeof path, "%.*s/%s", len ? len : 1, len ? p : ".", name);
        if (n < (int)sizeof path && access(path, X_OK) == 0 && stat(path, &st) == 0 &&
            S_ISREG(st.st_mode))
            return true;
    }
    return false;
}
