/* Runs kernels on another instruction set: commands come by the standard input, answers go to the standard output.

   load:  1, path (u64 length, bytes), symbol (the same)                        -> u64 number of the kernel
   run:   2, number, memories (u64 count; each u64 length, bytes),
          arguments (u64 count; each u64 memory + 1 or 0, i64 offset or number), u64 bytes of scratch,
          ranges (u64 count; each i64 begin, end)                               -> i64 code, the memories

   Each memory ends where a page without access begins, and so does scratch: whoever reads behind its end is killed. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int32_t (*kernel)(int64_t *args, int64_t begin, int64_t end, void *scratch);

enum { MOST = 65536 };
static kernel kernels[MOST];

static void get(void *to, size_t count) {
  if (count && fread(to, 1, count, stdin) != count) exit(feof(stdin) ? 0 : 3);
}

static void put(const void *from, size_t count) {
  if (count && fwrite(from, 1, count, stdout) != count) exit(4);
}

static uint64_t number(void) {
  uint64_t n;
  get(&n, 8);
  return n;
}

static char *text(void) {
  uint64_t n = number();
  char *found = calloc(1, n + 1);
  get(found, n);
  return found;
}

static char *fenced(uint64_t nbytes, char **base, uint64_t *whole) {
  uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), used = (nbytes + page - 1) / page * page;
  *whole = used + 2 * page;
  *base = mmap(0, *whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (*base == MAP_FAILED || (used && mprotect(*base + page, used, PROT_READ | PROT_WRITE))) exit(5);
  return *base + page + used - nbytes;
}

static void load(uint64_t *count) {
  char *path = text(), *symbol = text();
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  void *found = library ? dlsym(library, symbol) : 0;
  if (!found || *count == MOST) {
    fprintf(stderr, "%s\n", dlerror());
    exit(6);
  }
  kernels[*count] = (kernel)found;
  put(count, 8);
  ++*count;
}

static void run(uint64_t count) {
  uint64_t which = number(), memories = number();
  if (which >= count) exit(7);
  char **at = calloc(memories + 1, sizeof *at), **base = calloc(memories + 1, sizeof *base);
  uint64_t *nbytes = calloc(memories + 1, 8), *whole = calloc(memories + 1, 8);
  for (uint64_t i = 0; i < memories; i++) {
    nbytes[i] = number();
    at[i] = fenced(nbytes[i], &base[i], &whole[i]);
    get(at[i], nbytes[i]);
  }
  uint64_t arguments = number();
  int64_t *args = calloc(arguments + 1, 8);
  for (uint64_t i = 0; i < arguments; i++) {
    uint64_t memory = number();
    int64_t value = (int64_t)number();
    args[i] = memory ? (int64_t)(intptr_t)(at[memory - 1] + value) : value;
  }
  /* Scratch lies at whole cache lines, as kernels may rely on. */
  uint64_t scratch_nbytes = (number() + 63) / 64 * 64, ranges = number(), scratch_whole;
  char *scratch_base, *scratch = fenced(scratch_nbytes, &scratch_base, &scratch_whole);
  int64_t code = 0;
  for (uint64_t i = 0; i < ranges; i++) {
    int64_t begin = (int64_t)number(), end = (int64_t)number();
    memset(scratch, 0xff, scratch_nbytes);
    if (!code) code = kernels[which](args, begin, end, scratch_nbytes ? scratch : 0);
  }
  put(&code, 8);
  for (uint64_t i = 0; i < memories; i++) {
    put(at[i], nbytes[i]);
    munmap(base[i], whole[i]);
  }
  munmap(scratch_base, scratch_whole);
  free(at), free(base), free(nbytes), free(whole), free(args);
}

int main(void) {
  uint64_t count = 0;
  for (;;) {
    switch (number()) {
    case 1: load(&count); break;
    case 2: run(count); break;
    default: return 8;
    }
    fflush(stdout);
  }
}
