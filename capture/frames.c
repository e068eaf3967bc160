#include "capture/frames.h"

#include "core/buf.h"
#include "core/fileio.h"
#include "core/mem.h"

#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned char to_byte(float x)
{
    float y = (x + 1) * 127.5f;
    return (unsigned char)(y <= 0 ? 0 : y >= 255 ? 255 : y + 0.5f);
}

int frames_write(const char *dir, const float *x, int64_t t, int64_t h, int64_t w, struct err *err)
{
    unsigned char *rgb = NULL;
    char path[4096];
    int rc = 0;

    TRY(make_dirs(dir, err));
    TRY(mem_alloc(&rgb, 3 * h * w, 1, "frame", err));
    for (int64_t f = 0; f < t; f++) {
        for (int64_t i = 0; i < h * w; i++)
            for (int64_t c = 0; c < 3; c++)
                rgb[3 * i + c] = to_byte(x[(c * t + f) * h * w + i]);
        png_image image;
        memset(&image, 0, sizeof image);
        image.version = PNG_IMAGE_VERSION;
        image.width = (png_uint_32)w;
        image.height = (png_uint_32)h;
        image.format = PNG_FORMAT_RGB;
        snprintf(path, sizeof path, "%s/frame-%03lld.png", dir, (long long)f);
        if (!png_image_write_to_file(&image, path, 0, rgb, 0, NULL))
            FAIL(err, ERR_IO, "%s: %s", path, image.message);
    }
out:
    free(rgb);
    return rc;
}
