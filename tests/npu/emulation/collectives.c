/* The collectives of the emulated HCCL: each rank lays its part into its slot, all meet, each reads, all meet again. */
#include "hccl.h"

#include "cann.h"

#include <stdlib.h>
#include <string.h>

/* HcclDataType to aclDataType; 128-bit and 8-bit floating types are not emulated. */
static int element_type(int type) {
  static const int known[] = {INT8, INT16, INT32, FLOAT16, FLOAT32, INT64, UINT64, UINT8, UINT16, UINT32, FLOAT64, BFLOAT16};
  return type >= 0 && type < (int)(sizeof known / sizeof *known) ? known[type] : -1;
}

static size_t bytes_of(uint64_t count, int type) { return count * element_size(element_type(type)); }

static int is_known(const char *name, int type) {
  if (element_type(type) >= 0) return 1;
  refuse("%s on HCCL type %d", name, type);
  return 0;
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

static int meet(communicator *it) { return barrier(it, collective_seconds()); }

enum { ALL_REDUCE = 1, ALL_GATHER, BROADCAST, ALL_TO_ALL };

static int all_ask_for(communicator *it, const request *wanted) {
  for (uint32_t rank = 0; rank < it->ranks; rank++)
    if (memcmp(&it->all->asked[rank], wanted, sizeof *wanted)) return 0;
  return 1;
}

/* Every rank's part, in the order of ranks, to every rank. */
static int gather(communicator *it, request wanted, const char *from, char *to) {
  int error = H_OK;
  size_t done = 0;
  it->all->asked[it->rank] = wanted;
  do {
    size_t part = smaller(wanted.size - done, SLOT);
    memcpy(it->all->slot[it->rank], from + done, part);
    if ((error = meet(it))) return error;
    if (!all_ask_for(it, &wanted)) return broken(it, H_PARAMETER, "the ranks ask for different collectives");
    for (uint32_t rank = 0; rank < it->ranks; rank++) memcpy(to + rank * wanted.size + done, it->all->slot[rank], part);
    if ((error = meet(it))) return error;
    done += part;
  } while (done < wanted.size);
  return H_OK;
}

enum { SUM = 0, PRODUCT = 1, MAXIMUM = 2, MINIMUM = 3 };

#define COMBINED(a, b, how) \
  ((how) == SUM ? (a) + (b) : (how) == PRODUCT ? (a) * (b) : ((how) == MAXIMUM) == ((a) > (b)) ? (a) : (b))

static void combine(char *result, const char *part, uint64_t count, int type, int how) {
  size_t size = element_size(type);
  for (uint64_t i = 0; i < count; i++, result += size, part += size) {
    if (type == UINT64) {
      uint64_t a = (uint64_t)load_whole(result, type), b = (uint64_t)load_whole(part, type);
      store_whole(result, type, (int64_t)COMBINED(a, b, how));
    } else if (is_whole(type)) {
      int64_t a = load_whole(result, type), b = load_whole(part, type);
      store_whole(result, type, COMBINED(a, b, how));
    } else {
      double a = load_real(result, type), b = load_real(part, type);
      store_real(result, type, COMBINED(a, b, how));
    }
  }
}

int HcclAllReduce(void *from, void *to, uint64_t count, int type, int how, communicator *it, void *stream) {
  if (!is_known("HcclAllReduce", type)) return H_PARAMETER;
  size_t size = bytes_of(count, type);
  char *parts = malloc(size * it->ranks + 1);
  if (!parts) return H_MEMORY;
  int error = gather(it, (request){ALL_REDUCE, type, how, 0, size}, from, parts);
  if (!error) {
    memcpy(to, parts, size);
    for (uint32_t rank = 1; rank < it->ranks; rank++) combine(to, parts + rank * size, count, element_type(type), how);
  }
  free(parts);
  return error;
}

int HcclReduce(void *from, void *to, uint64_t count, int type, int how, uint32_t root, communicator *it, void *stream) {
  char *result = malloc(bytes_of(count, type) + 1);
  int error = HcclAllReduce(from, result, count, type, how, it, stream);
  if (!error && it->rank == root) memcpy(to, result, bytes_of(count, type));
  free(result);
  return error;
}

int HcclReduceScatter(void *from, void *to, uint64_t count, int type, int how, communicator *it, void *stream) {
  size_t size = bytes_of(count, type);
  char *result = malloc(size * it->ranks + 1);
  int error = HcclAllReduce(from, result, count * it->ranks, type, how, it, stream);
  if (!error) memcpy(to, result + it->rank * size, size);
  free(result);
  return error;
}

int HcclAllGather(void *from, void *to, uint64_t count, int type, communicator *it, void *stream) {
  if (!is_known("HcclAllGather", type)) return H_PARAMETER;
  return gather(it, (request){ALL_GATHER, type, 0, 0, bytes_of(count, type)}, from, to);
}

int HcclBroadcast(void *data, uint64_t count, int type, uint32_t root, communicator *it, void *stream) {
  if (!is_known("HcclBroadcast", type)) return H_PARAMETER;
  size_t size = bytes_of(count, type);
  char *parts = malloc(size * it->ranks + 1);
  int error = gather(it, (request){BROADCAST, type, 0, root, size}, data, parts);
  if (!error) memcpy(data, parts + root * size, size);
  free(parts);
  return error;
}

int HcclScatter(void *from, void *to, uint64_t count, int type, uint32_t root, communicator *it, void *stream) {
  size_t size = bytes_of(count, type);
  char *parts = calloc(size * it->ranks + 1, 1);
  if (it->rank == root) memcpy(parts, from, size * it->ranks);
  int error = HcclBroadcast(parts, count * it->ranks, type, root, it, stream);
  if (!error) memcpy(to, parts + it->rank * size, size);
  free(parts);
  return error;
}

int HcclAlltoAll(void *from, uint64_t count, int type, void *to, uint64_t other_count, int other_type, communicator *it,
                 void *stream) {
  if (!is_known("HcclAlltoAll", type)) return H_PARAMETER;
  size_t size = bytes_of(count, type), row = size * it->ranks;
  char *rows = malloc(row * it->ranks + 1);
  int error = gather(it, (request){ALL_TO_ALL, type, 0, 0, row}, from, rows);
  for (uint32_t rank = 0; !error && rank < it->ranks; rank++)
    memcpy((char *)to + rank * size, rows + rank * row + it->rank * size, size);
  free(rows);
  return error;
}

int HcclBarrier(communicator *it, void *stream) { return meet(it); }

/* Send and receive: a letter at a time, each put when the one before it was taken. */
int HcclSend(void *data, uint64_t count, int type, uint32_t to, communicator *it, void *stream) {
  if (!is_known("HcclSend", type)) return H_PARAMETER;
  letter *post = &it->all->letters[it->rank][to];
  size_t size = bytes_of(count, type);
  for (size_t done = 0; done < size; done += LETTER) {
    int error = await(it, &post->is_full, 0, 1, collective_seconds());
    if (error) return error;
    memcpy(post->data, (char *)data + done, smaller(size - done, LETTER));
    __atomic_store_n(&post->is_full, 1, __ATOMIC_SEQ_CST);
  }
  return H_OK;
}

int HcclRecv(void *data, uint64_t count, int type, uint32_t from, communicator *it, void *stream) {
  if (!is_known("HcclRecv", type)) return H_PARAMETER;
  letter *post = &it->all->letters[from][it->rank];
  size_t size = bytes_of(count, type);
  for (size_t done = 0; done < size; done += LETTER) {
    int error = await(it, &post->is_full, 1, 1, collective_seconds());
    if (error) return error;
    memcpy((char *)data + done, post->data, smaller(size - done, LETTER));
    __atomic_store_n(&post->is_full, 0, __ATOMIC_SEQ_CST);
  }
  return H_OK;
}
