/* Memory of host and devices, and copies. A copy is made by the thread that asks for it. */
#include "cann.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 4096
#define MARK 0x52616c6c79506f74ull

/* Before each block of device memory, on a page of its own so that the block is aligned as real ones are. */
typedef struct {
  uint64_t mark;
  size_t size;
  int device;
} header;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t used[64];

size_t memory_used(int device) {
  pthread_mutex_lock(&lock);
  size_t size = used[device];
  pthread_mutex_unlock(&lock);
  return size;
}

int aclrtMalloc(void **block, size_t size, int policy) {
  int device = current_device();
  void *page = NULL;
  *block = NULL;
  if (device < 0) return E_CONTEXT;
  pthread_mutex_lock(&lock);
  int fits = size <= device_memory() - used[device];
  if (fits && !posix_memalign(&page, PAGE, PAGE + size)) used[device] += size;
  pthread_mutex_unlock(&lock);
  if (!page) return E_MEMORY;
  *(header *)page = (header){MARK, size, device};
  *block = (char *)page + PAGE;
  return OK;
}
int aclrtMallocAlign32(void **block, size_t size, int policy) { return aclrtMalloc(block, size, policy); }
int aclrtMallocCached(void **block, size_t size, int policy) { return aclrtMalloc(block, size, policy); }
int aclrtMallocWithCfg(void **block, size_t size, int policy, void *configuration) {
  return aclrtMalloc(block, size, policy);
}

int aclrtFree(void *block) {
  if (!block) return OK;
  header *page = (header *)((char *)block - PAGE);
  if (page->mark != MARK) return E_PARAMETER;
  pthread_mutex_lock(&lock);
  used[page->device] -= page->size;
  pthread_mutex_unlock(&lock);
  page->mark = 0;
  free(page);
  return OK;
}

int aclrtGetMemInfo(int kind, size_t *free_size, size_t *total) {
  int device = current_device();
  if (device < 0) return E_CONTEXT;
  *total = device_memory();
  *free_size = device_memory() - memory_used(device);
  return OK;
}

int aclrtMallocHost(void **block, size_t size) { return posix_memalign(block, 64, size ? size : 1) ? E_MEMORY : OK; }
int aclrtMallocHostWithCfg(void **block, uint64_t size, void *configuration) { return aclrtMallocHost(block, size); }
int aclrtFreeHost(void *block) {
  free(block);
  return OK;
}

int aclrtMemcpy(void *to, size_t room, const void *from, size_t size, int kind) {
  if (size > room) return E_PARAMETER;
  if (lost()) return E_LOST;
  memmove(to, from, size);
  return OK;
}
int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t size, int kind, void *stream) {
  return aclrtMemcpy(to, room, from, size, kind);
}
int aclrtMemcpyAsyncWithCondition(void *to, size_t room, const void *from, size_t size, int kind, void *stream) {
  return aclrtMemcpy(to, room, from, size, kind);
}
int aclrtMemset(void *to, size_t room, int32_t value, size_t size) {
  if (size > room) return E_PARAMETER;
  if (lost()) return E_LOST;
  memset(to, value, size);
  return OK;
}
int aclrtMemsetAsync(void *to, size_t room, int32_t value, size_t size, void *stream) {
  return aclrtMemset(to, room, value, size);
}
