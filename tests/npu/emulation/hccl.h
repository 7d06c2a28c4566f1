/* What the two files of the emulated HCCL share: a communicator, and how its ranks wait for each other. */
#ifndef RALLYPOINT_HCCL_H
#define RALLYPOINT_HCCL_H

#include <stddef.h>
#include <stdint.h>

/* Codes as CANN's documentation of HcclResult lists them. */
enum { H_OK = 0, H_PARAMETER = 1, H_MEMORY = 3, H_INTERNAL = 4, H_TIMEOUT = 9, H_REMOTE = 21 };

#define MOST_RANKS 64
#define SLOT ((size_t)1 << 18)
#define LETTER ((size_t)1 << 14)

/* A message from one rank to another on its way. */
typedef struct {
  uint32_t is_full, unused;
  char data[LETTER];
} letter;

/* What a rank asks for in a collective: all must ask for the same. ``size``: bytes from each rank. */
typedef struct {
  uint32_t collective, type, how, root;
  uint64_t size;
} request;

/* The memory that all ranks see; it begins as zeros. */
typedef struct {
  uint32_t arrived, generation, is_broken;
  uint32_t has_joined[MOST_RANKS];
  request asked[MOST_RANKS];
  char slot[MOST_RANKS][SLOT];
  letter letters[MOST_RANKS][MOST_RANKS];
} shared;

typedef struct {
  shared *all;
  int file;
  uint32_t rank, ranks;
  char name[64];
} communicator;

int await(communicator *, const uint32_t *word, uint32_t value, int is_equal, double seconds);
int barrier(communicator *, double seconds);
int broken(communicator *, int code, const char *why);
double collective_seconds(void);

#endif
