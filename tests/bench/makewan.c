/*
 * makewan.c - a Wan 2.1 checkpoint of a published size with random weights, to try the runner at
 * the size of the real models where these cannot be had.
 *
 *   makewan 1.3b|14b DIR [LAYERS [sparse]]
 *
 * Writes DIR/config.json, diffusion_pytorch_model.safetensors.index.json, one shard per layer and
 * one for the rest, and text.npy (8 text tokens). Weights are bfloat16 +-(1..2) 2^-6: what a matrix
 * of width 1536 to 5120 makes of values of order 1 is of order 1. With "sparse" only the first 512
 * KiB of a tensor are written and the rest is a hole in the file, zero when read: the 28.6 GB of
 * the large model then take 0.2 GB of disk. Memory: one chunk of 512 KiB.
 */
#include "core/buf.h"
#include "core/dtype.h"
#include "core/err.h"
#include "core/fileio.h"
#include "core/npy.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEM "diffusion_pytorch_model"

struct size {
    const char *name;
    int layers, heads;
    int64_t ffn;
};

static const struct size sizes[] = {{"1.3b", 30, 12, 8960}, {"14b", 40, 40, 13824}};

/* Letters of a shape: d width, f feed-forward, q frequencies, t text, 6 six widths, p a patch's
 * values, 1, 2, s = 6, c = 16 channels. */
struct spec {
    const char *name, *shape;
};

static const struct spec block[] = {
    {"scale_shift_table", "1sd"}, {"attn1.to_q.weight", "dd"},
    {"attn1.to_q.bias", "d"},     {"attn1.to_k.weight", "dd"},
    {"attn1.to_k.bias", "d"},     {"attn1.to_v.weight", "dd"},
    {"attn1.to_v.bias", "d"},     {"attn1.to_out.0.weight", "dd"},
    {"attn1.to_out.0.bias", "d"}, {"attn1.norm_q.weight", "d"},
    {"attn1.norm_k.weight", "d"}, {"attn2.to_q.weight", "dd"},
    {"attn2.to_q.bias", "d"},     {"attn2.to_k.weight", "dd"},
    {"attn2.to_k.bias", "d"},     {"attn2.to_v.weight", "dd"},
    {"attn2.to_v.bias", "d"},     {"attn2.to_out.0.weight", "dd"},
    {"attn2.to_out.0.bias", "d"}, {"attn2.norm_q.weight", "d"},
    {"attn2.norm_k.weight", "d"}, {"ffn.net.0.proj.weight", "fd"},
    {"ffn.net.0.proj.bias", "f"}, {"ffn.net.2.weight", "df"},
    {"ffn.net.2.bias", "d"},      {"norm2.weight", "d"},
    {"norm2.bias", "d"},          {NULL, NULL},
};

#define EMBED "condition_embedder."
static const struct spec outer[] = {
    {"patch_embedding.weight", "dc122"},
    {"patch_embedding.bias", "d"},
    {EMBED "time_embedder.linear_1.weight", "dq"},
    {EMBED "time_embedder.linear_1.bias", "d"},
    {EMBED "time_embedder.linear_2.weight", "dd"},
    {EMBED "time_embedder.linear_2.bias", "d"},
    {EMBED "time_proj.weight", "6d"},
    {EMBED "time_proj.bias", "6"},
    {EMBED "text_embedder.linear_1.weight", "dt"},
    {EMBED "text_embedder.linear_1.bias", "d"},
    {EMBED "text_embedder.linear_2.weight", "dd"},
    {EMBED "text_embedder.linear_2.bias", "d"},
    {"proj_out.weight", "pd"},
    {"proj_out.bias", "p"},
    {"scale_shift_table", "12d"},
    {NULL, NULL},
};

static int64_t side(const struct size *s, char c)
{
    int64_t d = 128 * s->heads;
    switch (c) {
    case 'd':
        return d;
    case '6':
        return 6 * d;
    case 'f':
        return s->ffn;
    case 'q':
        return 256;
    case 't':
        return 4096;
    case 'p':
        return 64;
    case 's':
        return 6;
    case 'c':
        return 16;
    case '2':
        return 2;
    default:
        return 1;
    }
}

static void die(const char *what)
{
    perror(what);
    exit(3);
}

static FILE *create(const char *dir, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f)
        die(path);
    return f;
}

static void full_name(const struct spec *t, int layer, char name[128])
{
    if (layer >= 0)
        snprintf(name, 128, "blocks.%d.%s", layer, t->name);
    else
        snprintf(name, 128, "%s", t->name);
}

static int64_t tensor_bytes(const struct size *s, const struct spec *t)
{
    int64_t n = 2;
    for (const char *c = t->shape; *c; c++)
        n *= side(s, *c);
    return n;
}

static int64_t put_entry(const struct size *s, const struct spec *t, int layer, int64_t at,
                         char **to)
{
    char name[128];
    int64_t end = at + tensor_bytes(s, t);
    full_name(t, layer, name);
    *to += sprintf(*to, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[", at ? "," : "", name);
    for (const char *c = t->shape; *c; c++)
        *to += sprintf(*to, "%s%" PRId64, c == t->shape ? "" : ",", side(s, *c));
    *to += sprintf(*to, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", at, end);
    return end;
}

/* Four bfloat16 values +-(1..2) 2^-6 from one draw of splitmix64. */
static uint64_t four(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return ((z ^ z >> 31) & 0x807f807f807f807fu) | 0x3c803c803c803c80u;
}

static void put_values(FILE *f, int64_t bytes, bool sparse, uint64_t *state)
{
    static uint64_t chunk[1 << 16];
    while (bytes > 0) {
        size_t n = bytes < (int64_t)sizeof chunk ? (size_t)bytes : sizeof chunk;
        for (size_t i = 0; i < (n + 7) / 8; i++)
            chunk[i] = four(state);
        if (fwrite(chunk, 1, n, f) != n)
            die("writing weights");
        bytes -= (int64_t)n;
        if (sparse && bytes > 0) {
            if (fflush(f) || ftruncate(fileno(f), ftello(f) + bytes) || fseeko(f, bytes, SEEK_CUR))
                die("growing a file");
            return;
        }
    }
}

static void put_shard(const char *dir, const char *file, const struct size *s,
                      const struct spec *tensors, int layer, bool sparse, uint64_t *state)
{
    static char header[1 << 15];
    char *to = header;
    int64_t bytes = 0;
    *to++ = '{';
    for (const struct spec *t = tensors; t->name; t++)
        bytes = put_entry(s, t, layer, bytes, &to);
    *to++ = '}';
    while ((to - header) % 8)
        *to++ = ' ';
    uint64_t length = (uint64_t)(to - header);
    FILE *f = create(dir, file);
    if (fwrite(&length, 8, 1, f) != 1 || fwrite(header, length, 1, f) != 1)
        die(file);
    for (const struct spec *t = tensors; t->name; t++)
        put_values(f, tensor_bytes(s, t), sparse, state);
    if (fclose(f))
        die(file);
}

static void put_config(const char *dir, const struct size *s)
{
    FILE *f = create(dir, "config.json");
    fprintf(f,
            "{\"_class_name\":\"WanTransformer3DModel\",\"added_kv_proj_dim\":null,"
            "\"attention_head_dim\":128,\"cross_attn_norm\":true,\"eps\":1e-06,\"ffn_dim\":%" PRId64
            ",\"freq_dim\":256,\"image_dim\":null,\"in_channels\":16,\"num_attention_heads\":%d,"
            "\"num_layers\":%d,\"out_channels\":16,\"patch_size\":[1,2,2],"
            "\"qk_norm\":\"rms_norm_across_heads\",\"rope_max_seq_len\":1024,\"text_dim\":4096}\n",
            s->ffn, s->heads, s->layers);
    if (fclose(f))
        die("config.json");
}

static void shard_name(char name[128], int layer, int layers)
{
    snprintf(name, 128, STEM "-%05d-of-%05d.safetensors", layer + 2, layers + 1);
}

static void put_index(const char *dir, const struct size *s)
{
    char name[128], file[128];
    FILE *f = create(dir, STEM ".safetensors.index.json");
    fprintf(f, "{\"metadata\":{},\"weight_map\":{");
    for (int layer = -1; layer < s->layers; layer++) {
        shard_name(file, layer, s->layers);
        for (const struct spec *t = layer < 0 ? outer : block; t->name; t++) {
            full_name(t, layer, name);
            fprintf(f, "%s\"%s\":\"%s\"", layer < 0 && t == outer ? "" : ",", name, file);
        }
    }
    fprintf(f, "}}\n");
    if (fclose(f))
        die("index");
}

static int put_text(const char *dir, uint64_t *state)
{
    enum { TOKENS = 8, DIM = 4096 };
    static float x[TOKENS * DIM];
    const int64_t shape[] = {TOKENS, DIM};
    struct err err = {0};
    char path[4096];
    for (int i = 0; i < TOKENS * DIM; i++)
        x[i] = (float)(int)(four(state) & 255) / 128 - 1;
    snprintf(path, sizeof path, "%s/text.npy", dir);
    int rc = npy_write(path, DT_F32, 2, shape, x, &err);
    if (rc)
        fprintf(stderr, "makewan: %s\n", err.msg);
    return rc;
}

int main(int argc, char **argv)
{
    const struct size *found = NULL;
    struct err err = {0};
    uint64_t state = 1;
    char file[128];

    for (size_t i = 0; argc > 2 && i < sizeof sizes / sizeof *sizes; i++)
        if (strcmp(argv[1], sizes[i].name) == 0)
            found = &sizes[i];
    int layers = found ? argc > 3 ? atoi(argv[3]) : found->layers : 0;
    bool sparse = argc > 4 && strcmp(argv[4], "sparse") == 0;
    if (layers < 1 || layers > 1000) {
        fprintf(stderr, "usage: makewan 1.3b|14b DIR [LAYERS [sparse]]\n");
        return 2;
    }
    struct size s = *found;
    s.layers = layers;
    if (make_dirs(argv[2], &err)) {
        fprintf(stderr, "makewan: %s\n", err.msg);
        return 3;
    }
    put_config(argv[2], &s);
    put_index(argv[2], &s);
    for (int layer = -1; layer < layers; layer++) {
        shard_name(file, layer, layers);
        put_shard(argv[2], file, &s, layer < 0 ? outer : block, layer, sparse, &state);
    }
    return put_text(argv[2], &state) ? 3 : 0;
}
