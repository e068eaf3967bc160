/*
 * h5guard_driver.h - the file driver through which libhdf5 reads a guarded file.
 */
#ifndef LACUNA_H5GUARD_DRIVER_H
#define LACUNA_H5GUARD_DRIVER_H

#include "core/h5guard.h"

#include <hdf5.h>

/* Open a checked file for reading. The file owns the guard from here on; when opening fails the
 * guard is released. Below zero: h5_fail tells the reason. */
hid_t h5guard_hdf5(struct h5guard *g);

/* The guard of a file, group or dataset that was opened so; NULL: another one, such as a file that
 * this process writes. */
struct h5guard *h5guard_of(hid_t loc);

#endif
