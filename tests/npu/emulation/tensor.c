/* Tensors, numbers and lists as aclnn operators take them, and how an operator walks over its elements. */
#include "cann.h"

#include <stdlib.h>
#include <string.h>

tensor *aclCreateTensor(const int64_t *size, uint64_t dims, int type, const int64_t *stride, int64_t offset, int format,
                        const int64_t *storage, uint64_t storage_dims, void *data) {
  if (dims > DIMS) {
    refuse("a tensor of %d dimensions", (int)dims);
    return NULL;
  }
  tensor *made = calloc(1, sizeof *made);
  *made = (tensor){.dims = (int)dims, .type = type, .offset = offset, .data = data};
  int64_t step = 1;
  for (int i = (int)dims; i-- > 0; step *= size[i]) {
    made->size[i] = size[i];
    made->stride[i] = stride ? stride[i] : step;
  }
  return made;
}
int aclDestroyTensor(tensor *old) {
  free(old);
  return OK;
}

scalar *aclCreateScalar(void *value, int type) {
  scalar *made = calloc(1, sizeof *made);
  *made = (scalar){type, 0, 0};
  if (!is_number(type)) {
    refuse("a number of type %d", type);
  } else {
    made->real = load_real(value, type);
    made->whole = load_whole(value, type);
  }
  return made;
}
int aclDestroyScalar(scalar *old) {
  free(old);
  return OK;
}

int_array *aclCreateIntArray(const int64_t *values, uint64_t count) {
  int_array *made = malloc(sizeof *made + count * sizeof *values);
  made->count = count;
  if (count) memcpy(made->value, values, count * sizeof *values);
  return made;
}
int aclDestroyIntArray(int_array *old) {
  free(old);
  return OK;
}

tensor_list *aclCreateTensorList(tensor *const *tensors, uint64_t count) {
  tensor_list *made = malloc(sizeof *made + count * sizeof *tensors);
  made->count = count;
  if (count) memcpy(made->of, tensors, count * sizeof *tensors);
  return made;
}
int aclDestroyTensorList(tensor_list *old) {
  for (uint64_t i = 0; old && i < old->count; i++) aclDestroyTensor(old->of[i]);
  free(old);
  return OK;
}

int plan(uint64_t *workspace, executor **made, executor planned) {
  *workspace = 0;
  *made = malloc(sizeof **made);
  if (!*made) return E_MEMORY;
  **made = planned;
  return OK;
}

int launch(executor *planned) {
  int error = lost();
  if (!error) error = planned->run(planned);
  free(planned);
  return error;
}

/* The element of a tensor that lines up with a place in ``out``; sizes of 1 and missing dimensions are repeated. */
static char *element_at(const tensor *from, const tensor *out, const int64_t *place) {
  int64_t position = from->offset;
  for (int i = 0; i < from->dims; i++) {
    int along = out->dims - from->dims + i;
    if (from->size[i] != 1 && along >= 0) position += place[along] * from->stride[i];
  }
  return from->data + position * (int64_t)element_size(from->type);
}

static int can_be_computed(const executor *it) {
  if (!it->out) return 0;
  if (it->a && !it->b && !it->number && it->a->type == it->out->type) return element_size(it->a->type) != 0;
  return is_number(it->out->type) && (!it->a || is_number(it->a->type)) && (!it->b || is_number(it->b->type));
}

int each_element(const executor *it, element_function *function) {
  int64_t place[DIMS] = {0}, count = 1;
  const tensor *out = it->out;
  if (!can_be_computed(it))
    return refuse("%s on elements of type %d", it->name, it->a ? it->a->type : out ? out->type : -1);
  for (int i = 0; i < out->dims; i++) count *= out->size[i];
  while (count-- > 0) {
    function(it, element_at(out, out, place), it->a ? element_at(it->a, out, place) : NULL,
             it->b ? element_at(it->b, out, place) : NULL);
    for (int i = out->dims; i-- > 0;) {
      if (++place[i] < out->size[i]) break;
      place[i] = 0;
    }
  }
  return OK;
}
