/* greedy.c - the smallest element of a binary heap grows (greedy.h). */
#include "core/greedy.h"

int64_t greedy_place(int64_t *free_at, int workers, int64_t cost)
{
    int64_t end = free_at[0] + cost;
    int i = 0;
    for (;;) {
        int child = 2 * i + 1;
        if (child >= workers)
            break;
        if (child + 1 < workers && free_at[child + 1] < free_at[child])
            child++;
        if (free_at[child] >= end)
            break;
        free_at[i] = free_at[child];
        i = child;
    }
    free_at[i] = end;
    return end;
}
