/* The file of weights: mapped, and compared with what the program knows of it.
 *
 * Invariant: nothing of the file decides where something is read: places and sizes are the program's own, and the file
 * must have exactly its size. The header and all whole numbers, which may be indices, are compared whenever it is
 * opened; what remains are floating numbers, any of which is a value. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

static smelt_status read_whole(int fd, char *into, uint64_t nbytes, const char *path)
{
    for (uint64_t at = 0; at < nbytes;) {
        ssize_t got = read(fd, into + at, nbytes - at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return smelt_fail(SMELT_FILE, "%s cannot be read: %s", path, strerror(errno));
        if (!got)
            return smelt_fail(SMELT_FILE, "%s became shorter while it was read", path);
        at += (uint64_t)got;
    }
    return SMELT_OK;
}

static smelt_status bring_in(smelt_model *model, int fd, const char *path, int flags)
{
    uint64_t nbytes = model->program->file_nbytes;
    struct stat found;
    if (fstat(fd, &found))
        return smelt_fail(SMELT_FILE, "%s cannot be looked at: %s", path, strerror(errno));
    if (!S_ISREG(found.st_mode))
        return smelt_fail(SMELT_FILE, "%s is no plain file", path);
    if ((uint64_t)found.st_size != nbytes)
        return smelt_fail(SMELT_FILE, "%s has %lld bytes, the weights of %s have %llu: it is truncated, or another file",
                          path, (long long)found.st_size, model->program->name, (unsigned long long)nbytes);
    if (flags & SMELT_COPY) {
        model->file = smelt_allocate(nbytes);
        if (!model->file)
            return smelt_no_memory(nbytes, "the weights");
        return read_whole(fd, model->file, nbytes, path);
    }
    void *mapped = mmap(NULL, nbytes, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        return smelt_fail(SMELT_FILE, "%s cannot be mapped: %s", path, strerror(errno));
    model->file = mapped;
    model->is_mapped = true;
    return SMELT_OK;
}

static smelt_status compared(const smelt_model *model, const char *path, uint64_t nbytes, const uint8_t wanted[32])
{
    uint8_t found[32];
    smelt_sha256(model->file, nbytes, found);
    if (!memcmp(found, wanted, sizeof found))
        return SMELT_OK;
    return smelt_fail(SMELT_FILE, "%s is not the file of weights that %s was exported with: the digests differ", path,
                      model->program->name);
}

smelt_status smelt_open_weights(smelt_model *model, const char *path, int flags)
{
    const smelt_program *program = model->program;
    if (!program->file_nbytes)
        return SMELT_OK;
    if (!path)
        return smelt_fail(SMELT_ARGUMENT, "%s needs its file of weights", program->name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return smelt_fail(SMELT_FILE, "%s cannot be opened: %s", path, strerror(errno));
    smelt_status status = bring_in(model, fd, path, flags);
    close(fd);
    if (!status && flags & SMELT_VERIFY)
        status = compared(model, path, program->file_nbytes, program->digest);
    else if (!status)
        status = compared(model, path, program->checked_nbytes, program->checked_digest);
    return status;
}

void smelt_close_weights(smelt_model *model)
{
    if (model->file && model->is_mapped)
        munmap(model->file, model->program->file_nbytes);
    else
        free(model->file);
    free(model->panels);
}

char *smelt_block_data(const smelt_model *model, const struct smelt_context *context, int32_t number)
{
    const smelt_block *found = &model->program->blocks[number];
    switch (found->home) {
    case SMELT_IN_PANELS:
        return model->panels + found->own;
    case SMELT_IN_STATE:
        return context->state + found->own;
    default:
        return model->file + found->place;
    }
}
