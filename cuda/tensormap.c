/*
 * tensormap.c - cuTensorMapEncodeTiled, taken from the driver at run time: the program links no
 * libcuda (tensormap.h).
 */
#include "cuda/tensormap.h"

#include "cuda/device.h"

#include <cudaTypedefs.h>

static int encoder(PFN_cuTensorMapEncodeTiled_v12000 *encode, struct err *err)
{
    int rc = 0;
    enum cudaDriverEntryPointQueryResult found;
    void *p = NULL;
    CU(err, cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000, cudaEnableDefault,
                                             &found));
    if (found != cudaDriverEntryPointSuccess || !p)
        FAIL(err, ERR_MACHINE, "the NVIDIA driver has no cuTensorMapEncodeTiled (CUDA 12.0)");
    *(void **)encode = p;
out:
    return rc;
}

int tensor_map(CUtensorMap *map, const void *x, int d, int64_t n, int heads, int rows,
               struct err *err)
{
    return tensor_map_heads(map, x, d, n, heads, rows, 1, err);
}

int tensor_map_heads(CUtensorMap *map, const void *x, int d, int64_t n, int heads, int rows,
                     int box_heads, struct err *err)
{
    PFN_cuTensorMapEncodeTiled_v12000 encode = NULL;
    cuuint64_t dims[3] = {(cuuint64_t)d, (cuuint64_t)n, (cuuint64_t)heads};
    cuuint64_t strides[2] = {(cuuint64_t)d * 2, (cuuint64_t)n * (cuuint64_t)d * 2};
    cuuint32_t box[3] = {64, (cuuint32_t)rows, (cuuint32_t)box_heads}, steps[3] = {1, 1, 1};
    int rc = 0;
    TRY(encoder(&encode, err));
    CUresult r =
        encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)(uintptr_t)x, dims, strides, box,
               steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r)
        FAIL(err, ERR_RUN, "tensor map of %d x %lld x %d: driver error %d", heads, (long long)n, d,
             (int)r);
out:
    return rc;
}
