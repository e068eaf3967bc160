/*
 * h5guard_driver.c - a virtual file driver that reads through the guard.
 *
 * It has no features: no metadata accumulator and no sieve buffer, for these would keep bytes that
 * were read before an object was admitted.
 */
#include "core/h5guard/h5guard.h"
#include "core/mem.h"

#include <errno.h>
#include <stdlib.h>

struct driver_file {
    H5FD_t pub; /* the head of every driver's file; the first member */
    struct h5guard *guard;
    haddr_t end;
};

struct driver_info {
    struct h5guard *guard;
};

/* Files that are open through this driver. */
struct guarded {
    struct h5guard *guard;
    struct guarded *next;
};
static struct guarded *open_files;

/* The last answer of h5guard_of: the objects of a group are opened one after the other. HDF5 does
 * not give an id twice. */
static hid_t last_loc = H5I_INVALID_HID;
static struct h5guard *last_guard;

static hid_t driver_id(void);

/* ---- callbacks ------------------------------------------------------------------------------- */

static H5FD_t *open_file(const char *name, unsigned flags, hid_t fapl, haddr_t max)
{
    const struct driver_info *info = H5Pget_driver_info(fapl);
    struct driver_file *f = info && !(flags & H5F_ACC_RDWR) ? calloc(1, sizeof *f) : NULL;
    if (f)
        f->guard = info->guard;
    return (H5FD_t *)f;
}

/* The guard goes with the file; when opening failed it is not in the list yet. */
static herr_t close_file(H5FD_t *file)
{
    OWN(free_at) struct driver_file *f = (struct driver_file *)file;
    struct guarded **p = &open_files;
    last_loc = H5I_INVALID_HID;
    while (*p && (*p)->guard != f->guard)
        p = &(*p)->next;
    if (*p) {
        OWN(free_at) struct guarded *gone = *p;
        *p = gone->next;
        h5guard_free(gone->guard);
    }
    return 0;
}

static herr_t query(const H5FD_t *file, unsigned long *flags)
{
    *flags = 0;
    return 0;
}

static haddr_t get_end(const H5FD_t *file, H5FD_mem_t type)
{
    return ((const struct driver_file *)file)->end;
}

static herr_t set_end(H5FD_t *file, H5FD_mem_t type, haddr_t at)
{
    ((struct driver_file *)file)->end = at;
    return 0;
}

static haddr_t file_end(const H5FD_t *file, H5FD_mem_t type)
{
    return h5guard_size(((const struct driver_file *)file)->guard);
}

static herr_t get_handle(H5FD_t *file, hid_t fapl, void **handle)
{
    *handle = h5guard_fd(((struct driver_file *)file)->guard);
    return 0;
}

static herr_t read_bytes(H5FD_t *file, H5FD_mem_t type, hid_t dxpl, haddr_t at, size_t n, void *out)
{
    struct driver_file *f = (struct driver_file *)file;
    if (h5guard_read(f->guard, type == H5FD_MEM_DRAW, at, n, out))
        return 0;
    if (errno)
        H5Epush2(H5E_DEFAULT, __FILE__, __func__, __LINE__, H5E_ERR_CLS, H5E_IO, H5E_READERROR,
                 "reading failed, errno = %d", errno);
    return -1;
}

static herr_t refuse_write(H5FD_t *file, H5FD_mem_t type, hid_t dxpl, haddr_t at, size_t n,
                           const void *data)
{
    return -1;
}

static const H5FD_class_t driver = {
#ifdef H5FD_CLASS_VERSION
    .version = H5FD_CLASS_VERSION,
    .value = 512, /* first number for drivers that are not registered with The HDF Group */
#endif
    .name = "lacuna-guard",
    .maxaddr = INT64_MAX,
    .fc_degree = H5F_CLOSE_STRONG,
    .fapl_size = sizeof(struct driver_info),
    .open = open_file,
    .close = close_file,
    .query = query,
    .get_eoa = get_end,
    .set_eoa = set_end,
    .get_eof = file_end,
    .get_handle = get_handle,
    .read = read_bytes,
    .write = refuse_write,
    .fl_map = H5FD_FLMAP_DICHOTOMY,
};

static hid_t driver_id(void)
{
    static hid_t id = H5I_INVALID_HID;
    if (id < 0)
        id = H5FDregister(&driver);
    return id;
}

/* ---- files ----------------------------------------------------------------------------------- */

hid_t h5guard_hdf5(struct h5guard *g)
{
    struct driver_info info = {.guard = g};
    struct guarded *entry = calloc(1, sizeof *entry);
    hid_t fapl = H5Pcreate(H5P_FILE_ACCESS), file = H5I_INVALID_HID;
    H5Pset_fclose_degree(fapl, H5F_CLOSE_STRONG);
    if (entry && H5Pset_driver(fapl, driver_id(), &info) >= 0)
        file = H5Fopen("guarded", H5F_ACC_RDONLY, fapl);
    H5Pclose(fapl);
    if (file < 0) {
        free(entry);
        h5guard_free(g);
        return file;
    }
    entry->guard = g;
    entry->next = open_files;
    open_files = entry;
    return file;
}

/* Other drivers have descriptors of their own, so the address of the descriptor tells. */
struct h5guard *h5guard_of(hid_t loc)
{
    const struct guarded *p = open_files;
    void *handle = NULL;
    if (loc >= 0 && loc == last_loc)
        return last_guard;
    hid_t file = H5Iget_file_id(loc);
    if (file < 0 || H5Fget_vfd_handle(file, H5P_DEFAULT, &handle) < 0)
        p = NULL;
    if (file >= 0)
        H5Fclose(file);
    while (p && handle != h5guard_fd(p->guard))
        p = p->next;
    last_loc = loc;
    last_guard = p ? p->guard : NULL;
    return last_guard;
}
