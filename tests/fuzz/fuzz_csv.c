/*
 * fuzz_csv.c - CSV files: every row has the header's fields, every field is a text.
 */
#include "tests/fuzz/fuzz.h"
#include "analyze/csv.h"

#include <string.h>

static int seeds(struct fuzz_corpus *c, struct err *err)
{
    static const char *const texts[] = {
        "a,b,c\n1,2,3\n4,5,6\n",
        "a,b\r\n\"x, \"\"y\"\"\",\"line\nbreak\"\r\n,\r\n",
        "table,row,column,value,unit\nTable 1,sale,128K,0.91,\nTable 1,\"a \xc3\xa9\",64K,,ms\n",
        "one\n1\n\"\"\n3",
    };
    for (int i = 0; i < 4; i++)
        fuzz_add(c, texts[i], strlen(texts[i]));
    return fuzz_add_file(c, "datasets/paper/sale.csv", err);
}

static int run(const void *data, size_t len, struct err *err)
{
    struct csv t = {0};
    struct err ignored = {0};
    size_t sum = 0;
    int64_t at = -1;
    int rc = csv_read(fuzz_file("x.csv", data, len), &t, err);
    if (rc)
        return rc;
    for (int64_t i = 0; i < t.n; i++)
        for (int64_t k = 0; k < t.fields; k++)
            sum += strlen(t.row[i][k]);
    if (t.n < 1 || t.fields < 1 || sum > len)
        fuzz_wild("%lld rows, %lld fields, %zu characters of %zu", (long long)t.n,
                  (long long)t.fields, sum, len);
    else if (csv_column(&t, t.row[0][t.fields - 1], "x.csv", &at, &ignored) != 0 || at < 0 ||
             at >= t.fields || strcmp(t.row[0][at], t.row[0][t.fields - 1]) != 0)
        fuzz_wild("column '%s' is not found: %lld", t.row[0][t.fields - 1], (long long)at);
    csv_free(&t);
    return 0;
}

const struct fuzz_target fuzz_csv = {"csv", seeds, NULL, true, run};
