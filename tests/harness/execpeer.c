/*
 * execpeer.c - a program for the method exec, for tests: the first argument says what it answers,
 * right or wrong in one way.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct request {
    long cell, nq, nk, d, dv, head;
    int causal;
    char line[8192];
};

static long number(const char *line, const char *key)
{
    char pattern[40];
    snprintf(pattern, sizeof pattern, "\"%s\":", key);
    const char *at = strstr(line, pattern);
    return at ? strtol(at + strlen(pattern), NULL, 10) : -1;
}

static int next_request(struct request *r)
{
    if (!fgets(r->line, sizeof r->line, stdin))
        return 0;
    r->cell = number(r->line, "cell");
    r->nq = number(r->line, "nq");
    r->nk = number(r->line, "nk");
    r->d = number(r->line, "d");
    r->dv = number(r->line, "dv");
    r->head = number(r->line, "head");
    r->causal = strstr(r->line, "\"causal\":true") != NULL;
    return 1;
}

static long blocks(long n, long b)
{
    return (n + b - 1) / b;
}

/* ---- right answers -------------------------------------------------------------------------- */

static void window(const struct request *r, long w)
{
    long width = blocks(r->nk, 8);
    unsigned char *row = malloc((size_t)width);
    printf("{\"cell\":%ld,\"form\":\"bits\"}\n", r->cell);
    for (long i = 0; i < r->nq; i++) {
        long p = i + r->nk - r->nq;
        memset(row, 0, (size_t)width);
        for (long j = 0; j < r->nk; j++)
            if (labs(p - j) < w && (j <= p || !r->causal))
                row[j / 8] |= (unsigned char)(1 << j % 8);
        fwrite(row, 1, (size_t)width, stdout);
    }
    free(row);
}

/* Bitmap in which everything is set, later keys too. */
static void everything(const struct request *r)
{
    printf("{\"form\":\"bits\",\"bq\":1,\"bk\":1}\n");
    for (long i = 0; i < r->nq; i++)
        for (long j = 0; j < r->nk; j += 8)
            putchar(r->nk - j < 8 ? (1 << (r->nk - j)) - 1 : 255);
}

/* Lists of b x b blocks: the first and the diagonal one. */
static void first_and_diagonal(const struct request *r, long b)
{
    long rows = blocks(r->nq, b), cols = blocks(r->nk, b), n = 0;
    int64_t *ptr = calloc((size_t)rows + 1, sizeof *ptr);
    int32_t *col = calloc(2 * (size_t)rows, sizeof *col);
    for (long g = 0; g < rows; g++) {
        long last = (g + 1) * b < r->nq ? (g + 1) * b - 1 : r->nq - 1;
        long c = (last + r->nk - r->nq) / b;
        col[n++] = 0;
        if (c > 0 && c < cols)
            col[n++] = (int32_t)c;
        ptr[g + 1] = n;
    }
    printf("{\"cell\":%ld,\"form\":\"lists\",\"bq\":%ld,\"bk\":%ld,\"nnz\":%ld}\n", r->cell, b, b,
           n);
    fwrite(ptr, sizeof *ptr, (size_t)rows + 1, stdout);
    fwrite(col, sizeof *col, (size_t)n, stdout);
    free(ptr);
    free(col);
}

/* Sums of the three arrays as a reason to skip. */
static void sums(const struct request *r)
{
    const char *at = strstr(r->line, "\"arrays\":"), *names[] = {"\"q\":[", "\"k\":[", "\"v\":["};
    long counts[] = {r->nq * r->d, r->nk * r->d, r->nk * r->dv};
    printf("{\"cell\":%ld,\"skip\":\"", r->cell);
    for (int a = 0; a < 3; a++) {
        long offset = strtol(strstr(at, names[a]) + 5, NULL, 10);
        size_t size = (size_t)(offset + 4 * counts[a]);
        char *map = mmap(NULL, size, PROT_READ, MAP_SHARED, 3, 0);
        double sum = 0;
        for (long i = 0; i < counts[a]; i++)
            sum += (double)((float *)(void *)(map + offset))[i];
        munmap(map, size);
        printf("%s%.4f", a ? " " : "", sum);
    }
    printf("\"}\n");
}

/* ---- wrong ones ----------------------------------------------------------------------------- */

/* Lists of 16 x 16 blocks for the 5 x 5 blocks of 70 tokens, with one thing wrong. */
static void wrong_lists(const struct request *r, const char *what)
{
    int64_t ptr[] = {0, 1, 2, 3, 4, 6};
    int32_t col[] = {0, 0, 0, 0, 2, 4};
    long n = 6;
    if (strcmp(what, "range") == 0)
        col[5] = 5;
    if (strcmp(what, "unsorted") == 0)
        col[5] = 1;
    if (strcmp(what, "pointers") == 0)
        ptr[2] = 9;
    if (strcmp(what, "many") == 0)
        n = 26;
    if (strcmp(what, "negative") == 0)
        n = -1;
    printf("{\"cell\":%ld,\"form\":\"lists\",\"bq\":16,\"bk\":16,\"nnz\":%ld}\n", r->cell, n);
    fwrite(ptr, sizeof *ptr, 6, stdout);
    if (strcmp(what, "truncated") == 0) {
        fflush(stdout);
        exit(0);
    }
    fwrite(col, sizeof *col, 6, stdout);
    if (strcmp(what, "more") == 0)
        fputs("and more", stdout);
}

static void wrong_line(const struct request *r, const char *what)
{
    static const struct {
        const char *what, *line;
    } lines[] = {
        {"garbage", "hello"},
        {"array", "[1, 2]"},
        {"form", "{\"form\":\"dense\"}"},
        {"noform", "{\"bq\":16}"},
        {"unit", "{\"form\":\"lists\",\"bq\":0,\"bk\":16,\"nnz\":0}"},
        {"nonnz", "{\"form\":\"lists\",\"bq\":16,\"bk\":16}"},
        {"othercell", "{\"cell\":999,\"skip\":\"x\"}"},
        {"error", "{\"error\":\"no GPU\"}"},
    };
    for (size_t k = 0; k < sizeof lines / sizeof *lines; k++)
        if (strcmp(what, lines[k].what) == 0)
            puts(lines[k].line);
    if (strcmp(what, "longline") == 0)
        for (int i = 0; i < 70000; i++)
            putchar('x');
    if (strcmp(what, "padding") == 0) { /* 70 keys: 9 bytes, of the last 6 bits */
        printf("{\"cell\":%ld,\"form\":\"bits\"}\n", r->cell);
        for (long i = 0; i < 9 * r->nq; i++)
            putchar(i == 26 ? 64 : 1);
    }
}

/* Dies at the first request of its life unless FILE is there, which it makes. */
static void flaky(const char *file)
{
    if (access(file, F_OK) == 0)
        return;
    fclose(fopen(file, "w"));
    fputs("out of luck\n", stderr);
    exit(3);
}

/* Cut the file of the arrays, or make it longer than the next request needs. */
static void resize(long size)
{
    int again = open("/proc/self/fd/3", O_RDWR);
    if (again >= 0 && ftruncate(again, size) != 0)
        fputs("the file keeps its size\n", stderr);
    close(again);
    close(open("/proc/self/fd/3", O_RDWR | O_TRUNC));
}

/* The ways to write to the arrays, as a reason to skip: "0 0 0 0" where none works. */
static void writes(const struct request *r)
{
    int again = open("/proc/self/fd/3", O_RDWR);
    printf("{\"cell\":%ld,\"skip\":\"%d %d %d %d\"}\n", r->cell, pwrite(3, "x", 1, 0) == 1,
           mmap(NULL, 1, PROT_WRITE, MAP_SHARED, 3, 0) != MAP_FAILED, pwrite(again, "x", 1, 0) == 1,
           mmap(NULL, 1, PROT_WRITE, MAP_SHARED, again, 0) != MAP_FAILED);
    close(again);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "", *more = argc > 2 ? argv[2] : "8";
    struct request r;
    if (strcmp(what, "gone") == 0)
        return 7;
    while (next_request(&r)) {
        if (strcmp(what, "hang") == 0)
            pause();
        while (strcmp(what, "flood") == 0)
            fputs("and on\n", stderr);
        if (strcmp(what, "flaky") == 0)
            flaky(more);
        if (strcmp(what, "resize") == 0)
            resize(strtol(more, NULL, 10));
        if (strcmp(what, "window") == 0)
            window(&r, strtol(more, NULL, 10));
        else if (strcmp(what, "flaky") == 0 || strcmp(what, "resize") == 0)
            window(&r, 8);
        else if (strcmp(what, "writes") == 0)
            writes(&r);
        else if (strcmp(what, "blocks") == 0)
            first_and_diagonal(&r, strtol(more, NULL, 10));
        else if (strcmp(what, "everything") == 0)
            everything(&r);
        else if (strcmp(what, "sums") == 0)
            sums(&r);
        else if (strncmp(what, "lists-", 6) == 0)
            wrong_lists(&r, what + 6);
        else
            wrong_line(&r, what);
        fflush(stdout);
    }
    return 0;
}
