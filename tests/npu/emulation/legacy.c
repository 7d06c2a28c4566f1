/* The operators of the older interface (aclop): named by a string, on packed tensors. torch_npu falls back to it for
   some zeros, ones and copies, and for every operator that it finds no newer function for; those are refused. */
#include "cann.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
  int type, format, dims;
  int64_t size[32];
} description;

typedef struct {
  void *data;
  size_t size;
} buffer;

description *aclCreateTensorDesc(int type, int dims, const int64_t *size, int format) {
  description *made = calloc(1, sizeof *made);
  *made = (description){.type = type, .format = format, .dims = dims > 32 ? 32 : dims};
  for (int i = 0; i < made->dims; i++) made->size[i] = size[i];
  return made;
}
void aclDestroyTensorDesc(description *old) { free(old); }
int aclGetTensorDescType(const description *it) { return it->type; }
int aclGetTensorDescFormat(const description *it) { return it->format; }
size_t aclGetTensorDescNumDims(const description *it) { return (size_t)it->dims; }
int aclGetTensorDescDimV2(const description *it, size_t dimension, int64_t *size) {
  if (dimension >= (size_t)it->dims) return E_PARAMETER;
  *size = it->size[dimension];
  return OK;
}
void aclSetTensorDescName(description *it, const char *name) {}
int aclSetTensorFormat(description *it, int format) { return OK; }
int aclSetTensorShape(description *it, int dims, const int64_t *size) { return OK; }
int aclSetTensorPlaceMent(description *it, int kind) { return OK; }

buffer *aclCreateDataBuffer(void *data, size_t size) {
  buffer *made = malloc(sizeof *made);
  *made = (buffer){data, size};
  return made;
}
int aclDestroyDataBuffer(buffer *old) {
  free(old);
  return OK;
}

/* Attributes: none of the operators below has one. */
void *aclopCreateAttr(void) { return malloc(1); }
void aclopDestroyAttr(void *old) { free(old); }
int aclopSetAttrBool(void) { return OK; }
int aclopSetAttrInt(void) { return OK; }
int aclopSetAttrFloat(void) { return OK; }
int aclopSetAttrString(void) { return OK; }
int aclopSetAttrDataType(void) { return OK; }
int aclopSetAttrListBool(void) { return OK; }
int aclopSetAttrListInt(void) { return OK; }
int aclopSetAttrListFloat(void) { return OK; }
int aclopSetAttrListListInt(void) { return OK; }

int aclopCompileAndExecuteV2(const char *name, int inputs, description **in, buffer **from, int outputs,
                             description **out, buffer **to, void *attributes, int engine, int compile,
                             const char *path, void *stream) {
  if (lost()) return E_LOST;
  if (outputs != 1) return refuse("operator %s", name);
  size_t size = element_size(out[0]->type), count = 1;
  for (int i = 0; i < out[0]->dims; i++) count *= out[0]->size[i];
  if (!size || count * size > to[0]->size) return refuse("operator %s on type %d", name, out[0]->type);
  if (!strcmp(name, "ZerosLike")) {
    memset(to[0]->data, 0, count * size);
  } else if (!strcmp(name, "OnesLike") && is_number(out[0]->type)) {
    for (size_t i = 0; i < count; i++) store_whole((char *)to[0]->data + i * size, out[0]->type, 1);
  } else if (inputs == 2 && !strcmp(name, "Fill") && in[1]->type == out[0]->type && from[1]->size >= size) {
    /* the first input is the shape, the second the value */
    for (size_t i = 0; i < count; i++) memcpy((char *)to[0]->data + i * size, from[1]->data, size);
  } else if (inputs == 1 && (!strcmp(name, "TensorMove") || !strcmp(name, "Identity")) &&
             in[0]->type == out[0]->type && from[0]->size >= count * size) {
    memmove(to[0]->data, from[0]->data, count * size);
  } else {
    return refuse("operator %s", name);
  }
  return OK;
}
int aclopCompileAndExecute(const char *name, int inputs, description **in, buffer **from, int outputs,
                           description **out, buffer **to, void *attributes, int engine, int compile,
                           const char *path, void *stream) {
  return aclopCompileAndExecuteV2(name, inputs, in, from, outputs, out, to, attributes, engine, compile, path, stream);
}
