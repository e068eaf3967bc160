/*
 * h5count.h - the number of attributes of an HDF5 object, by the call that the library has.
 */
#pragma once

#include <hdf5.h>
#include <stdint.h>

/* -1: HDF5 cannot say. */
static inline int64_t h5_attributes(hid_t object)
{
#if H5_VERSION_GE(1, 12, 0)
    H5O_info2_t info;
    herr_t rc = H5Oget_info3(object, &info, H5O_INFO_NUM_ATTRS);
#else
    H5O_info_t info;
    herr_t rc = H5Oget_info2(object, &info, H5O_INFO_NUM_ATTRS);
#endif
    return rc < 0 ? -1 : (int64_t)info.num_attrs;
}
