/* The aclnn operators that build a tensor from parts, and the sum over dimensions. */
#include "cann.h"

#include <stdlib.h>
#include <string.h>

/* operators.c */
int aclnnInplaceCopyGetWorkspaceSize(tensor *out, tensor *a, uint64_t *workspace, executor **made);
int aclnnInplaceFillScalarGetWorkspaceSize(tensor *out, scalar *number, uint64_t *workspace, executor **made);

/* Copy ``part`` into the window of ``out`` that ``view`` describes. */
static int copy_into(tensor view, const tensor *part) {
  executor *planned;
  uint64_t workspace;
  int error = aclnnInplaceCopyGetWorkspaceSize(&view, (tensor *)part, &workspace, &planned);
  return error ? error : launch(planned);
}

static int concatenate(const executor *it) {
  int error = OK;
  int64_t along = it->constant < 0 ? it->constant + it->out->dims : it->constant, start = 0;
  for (uint64_t i = 0; !error && i < it->tensors->count; i++) {
    const tensor *part = it->tensors->of[i];
    tensor view = *it->out;
    if (part->dims != view.dims) continue; /* an empty list, which torch lets pass among tensors of any shape */
    view.offset += start * view.stride[along];
    memcpy(view.size, part->size, sizeof view.size);
    start += part->size[along];
    error = copy_into(view, part);
  }
  return error;
}
int aclnnCatGetWorkspaceSize(tensor_list *parts, int64_t along, tensor *out, uint64_t *workspace, executor **made) {
  return plan(workspace, made,
              (executor){.name = "aclnnCat", .run = concatenate, .out = out, .tensors = parts, .constant = along});
}
LAUNCH(aclnnCat)

/* ``numbers``: how many elements to put before and after, in pairs, the last dimension first. torch_npu pads what it
   gathers to a multiple of the device's line. */
static int pad(const executor *it) {
  tensor view = *it->out;
  executor *filling;
  uint64_t workspace;
  for (int i = 0; i < it->a->dims; i++) {
    uint64_t pair = 2 * (uint64_t)(it->a->dims - 1 - i);
    int64_t before = pair < it->numbers->count ? it->numbers->value[pair] : 0;
    int64_t after = pair + 1 < it->numbers->count ? it->numbers->value[pair + 1] : 0;
    if (before < 0 || after < 0) return refuse("%s by less than nothing", it->name);
    view.offset += before * view.stride[i];
    view.size[i] = it->a->size[i];
  }
  int error = aclnnInplaceFillScalarGetWorkspaceSize((tensor *)it->out, (scalar *)it->number, &workspace, &filling);
  if (!error) error = launch(filling);
  return error ? error : copy_into(view, it->a);
}
int aclnnConstantPadNdGetWorkspaceSize(tensor *a, int_array *pairs, scalar *value, tensor *out, uint64_t *workspace,
                                       executor **made) {
  return plan(workspace, made,
              (executor){.name = "aclnnConstantPadNd", .run = pad, .out = out, .a = a, .numbers = pairs, .number = value});
}
LAUNCH(aclnnConstantPadNd)

static void accumulate_one(const executor *it, char *out, const char *a, const char *b) {
  char *total = (char *)b;
  if (it->b->type == INT64) store_whole(total, INT64, load_whole(total, INT64) + load_whole(a, it->a->type));
  else store_real(total, FLOAT64, load_real(total, FLOAT64) + load_real(a, it->a->type));
}

static int is_summed(const int_array *along, int dimension, int dims) {
  if (!along || !along->count) return 1;
  for (uint64_t i = 0; i < along->count; i++)
    if (along->value[i] == dimension || along->value[i] + dims == dimension) return 1;
  return 0;
}

/* The totals are kept in 64 bits, in a tensor of the input's shape whose summed dimensions have stride 0, and rounded
   to the result's type at the end. */
static int sum(const executor *it) {
  tensor totals = *it->a, results = *it->out;
  int64_t count = 1, step = 1;
  totals.type = results.type = is_whole(it->out->type) ? INT64 : FLOAT64;
  totals.offset = results.offset = 0;
  for (int i = totals.dims; i-- > 0;) {
    int summed = is_summed(it->numbers, i, totals.dims);
    totals.stride[i] = summed ? 0 : count;
    if (!summed) count *= totals.size[i];
  }
  for (int i = results.dims; i-- > 0; step *= results.size[i]) results.stride[i] = step;
  totals.data = results.data = calloc(count + 1, 8);
  int error = each_element(&(executor){.name = it->name, .out = it->a, .a = it->a, .b = &totals}, accumulate_one);
  if (!error) error = copy_into(*it->out, &results);
  free(totals.data);
  return error;
}
int aclnnReduceSumGetWorkspaceSize(tensor *a, int_array *along, int keep, int type, tensor *out, uint64_t *workspace,
                                   executor **made) {
  return plan(workspace, made,
              (executor){.name = "aclnnReduceSum", .run = sum, .out = out, .a = a, .numbers = along});
}
LAUNCH(aclnnReduceSum)
