/* The aclnn operators that take one element at a time.
 *
 * A result is what torch computes on a CPU: whole numbers wrap, reals are rounded once to the result's type, and a
 * Python number is first rounded to the type that torch computes in.
 */
#include "cann.h"

#include <string.h>

/* torch's CPU computes halves in float32. There it leaves the number of a product; that of a sum is a half first. */
static int computes_in(int type) { return type == FLOAT64 ? FLOAT64 : FLOAT32; }

static void copy_one(const executor *it, char *out, const char *a, const char *b) {
  int from = it->a->type, to = it->out->type;
  if (from == to) memcpy(out, a, element_size(to));
  else if (is_whole(from)) store_whole(out, to, load_whole(a, from));
  else store_real(out, to, load_real(a, from));
}
static int copy(const executor *it) { return each_element(it, copy_one); }

int aclnnInplaceCopyGetWorkspaceSize(tensor *out, tensor *a, uint64_t *workspace, executor **made) {
  return plan(workspace, made, (executor){.name = "aclnnInplaceCopy", .run = copy, .out = out, .a = a});
}
LAUNCH(aclnnInplaceCopy)
int aclnnCastGetWorkspaceSize(tensor *a, int type, tensor *out, uint64_t *workspace, executor **made) {
  return plan(workspace, made, (executor){.name = "aclnnCast", .run = copy, .out = out, .a = a});
}
LAUNCH(aclnnCast)

static void fill_one(const executor *it, char *out, const char *a, const char *b) {
  int type = it->out->type;
  if (!it->number) store_whole(out, type, it->constant);
  else if (is_whole(type)) store_whole(out, type, it->number->whole);
  else store_real(out, type, it->number->real);
}
static int fill(const executor *it) { return each_element(it, fill_one); }

int aclnnInplaceZeroGetWorkspaceSize(tensor *out, uint64_t *workspace, executor **made) {
  return plan(workspace, made, (executor){.name = "aclnnInplaceZero", .run = fill, .out = out});
}
LAUNCH(aclnnInplaceZero)
int aclnnInplaceOneGetWorkspaceSize(tensor *out, uint64_t *workspace, executor **made) {
  return plan(workspace, made, (executor){.name = "aclnnInplaceOne", .run = fill, .out = out, .constant = 1});
}
LAUNCH(aclnnInplaceOne)
int aclnnInplaceFillScalarGetWorkspaceSize(tensor *out, scalar *number, uint64_t *workspace, executor **made) {
  return plan(workspace, made, (executor){.name = "aclnnInplaceFillScalar", .run = fill, .out = out, .number = number});
}
LAUNCH(aclnnInplaceFillScalar)

/* The second operand: an element of b, or a number. */
static int64_t whole_operand(const executor *it, const char *b) {
  return it->b ? load_whole(b, it->b->type) : it->number->whole;
}
static double real_operand(const executor *it, const char *b, int type) {
  return it->b ? load_real(b, it->b->type) : rounded(it->number->real, type);
}

/* out = a + constant * alpha * b: addition and subtraction */
static void add_one(const executor *it, char *out, const char *a, const char *b) {
  int type = it->out->type, in = computes_in(type);
  if (is_whole(type)) {
    int64_t alpha = it->constant * (it->alpha ? it->alpha->whole : 1);
    store_whole(out, type, load_whole(a, it->a->type) + alpha * whole_operand(it, b));
  } else {
    double alpha = it->constant * (it->alpha ? rounded(it->alpha->real, in) : 1);
    store_real(out, type, load_real(a, it->a->type) + alpha * real_operand(it, b, type));
  }
}
static int add(const executor *it) { return each_element(it, add_one); }

static void multiply_one(const executor *it, char *out, const char *a, const char *b) {
  int type = it->out->type;
  if (is_whole(type)) store_whole(out, type, load_whole(a, it->a->type) * whole_operand(it, b));
  else store_real(out, type, load_real(a, it->a->type) * real_operand(it, b, computes_in(type)));
}
static int multiply(const executor *it) { return each_element(it, multiply_one); }

/* aclnn<name> and aclnnInplace<name> with a tensor, aclnn<name>s and aclnnInplace<name>s with a number. */
#define ADDITION(Name, sign)                                                                                        \
  static int plan_##Name(tensor *a, tensor *b, scalar *number, scalar *alpha, tensor *out, uint64_t *workspace,     \
                         executor **made) {                                                                         \
    return plan(workspace, made,                                                                                    \
                (executor){.name = "aclnn" #Name, .run = add, .out = out, .a = a, .b = b, .number = number,         \
                           .alpha = alpha, .constant = sign});                                                      \
  }                                                                                                                 \
  int aclnn##Name##GetWorkspaceSize(tensor *a, tensor *b, scalar *alpha, tensor *out, uint64_t *w, executor **made) { \
    return plan_##Name(a, b, NULL, alpha, out, w, made);                                                            \
  }                                                                                                                 \
  int aclnn##Name##sGetWorkspaceSize(tensor *a, scalar *b, scalar *alpha, tensor *out, uint64_t *w, executor **made) { \
    return plan_##Name(a, NULL, b, alpha, out, w, made);                                                            \
  }                                                                                                                 \
  int aclnnInplace##Name##GetWorkspaceSize(tensor *a, tensor *b, scalar *alpha, uint64_t *w, executor **made) {     \
    return plan_##Name(a, b, NULL, alpha, a, w, made);                                                              \
  }                                                                                                                 \
  int aclnnInplace##Name##sGetWorkspaceSize(tensor *a, scalar *b, scalar *alpha, uint64_t *w, executor **made) {    \
    return plan_##Name(a, NULL, b, alpha, a, w, made);                                                              \
  }                                                                                                                 \
  LAUNCH(aclnn##Name) LAUNCH(aclnn##Name##s) LAUNCH(aclnnInplace##Name) LAUNCH(aclnnInplace##Name##s)
ADDITION(Add, 1)
ADDITION(Sub, -1)

static int plan_product(tensor *a, tensor *b, scalar *number, tensor *out, uint64_t *workspace, executor **made) {
  return plan(workspace, made,
              (executor){.name = "aclnnMul", .run = multiply, .out = out, .a = a, .b = b, .number = number});
}
int aclnnMulGetWorkspaceSize(tensor *a, tensor *b, tensor *out, uint64_t *workspace, executor **made) {
  return plan_product(a, b, NULL, out, workspace, made);
}
int aclnnMulsGetWorkspaceSize(tensor *a, scalar *b, tensor *out, uint64_t *workspace, executor **made) {
  return plan_product(a, NULL, b, out, workspace, made);
}
int aclnnInplaceMulGetWorkspaceSize(tensor *a, tensor *b, uint64_t *workspace, executor **made) {
  return plan_product(a, b, NULL, a, workspace, made);
}
int aclnnInplaceMulsGetWorkspaceSize(tensor *a, scalar *b, uint64_t *workspace, executor **made) {
  return plan_product(a, NULL, b, a, workspace, made);
}
LAUNCH(aclnnMul) LAUNCH(aclnnMuls) LAUNCH(aclnnInplaceMul) LAUNCH(aclnnInplaceMuls)

/* Whole numbers are compared as such; else both in the type that torch would bring them to. */
#define COMPARISON(Name, sign)                                                                                      \
  static void Name##_one(const executor *it, char *out, const char *a, const char *b) {                             \
    int first = it->a->type, second = it->b ? it->b->type : it->number->type, type = first;                         \
    if (is_whole(first) && is_whole(second)) {                                                                      \
      store_whole(out, it->out->type, load_whole(a, first) sign whole_operand(it, b));                              \
      return;                                                                                                       \
    }                                                                                                               \
    if (it->b) type = is_whole(first) ? second : is_whole(second) ? first : FLOAT64;                                \
    else if (is_whole(first)) type = FLOAT32;                                                                       \
    store_whole(out, it->out->type,                                                                                 \
                rounded(load_real(a, first), type) sign rounded(real_operand(it, b, FLOAT64), type));               \
  }                                                                                                                 \
  static int Name(const executor *it) { return each_element(it, Name##_one); }                                      \
  int aclnn##Name##TensorGetWorkspaceSize(tensor *a, tensor *b, tensor *out, uint64_t *workspace, executor **made) { \
    return plan(workspace, made, (executor){.name = "aclnn" #Name "Tensor", .run = Name, .out = out, .a = a, .b = b}); \
  }                                                                                                                 \
  int aclnn##Name##ScalarGetWorkspaceSize(tensor *a, scalar *b, tensor *out, uint64_t *workspace, executor **made) { \
    return plan(workspace, made,                                                                                    \
                (executor){.name = "aclnn" #Name "Scalar", .run = Name, .out = out, .a = a, .number = b});          \
  }                                                                                                                 \
  LAUNCH(aclnn##Name##Tensor) LAUNCH(aclnn##Name##Scalar)
COMPARISON(Eq, ==)
COMPARISON(Ne, !=)
COMPARISON(Lt, <)
COMPARISON(Le, <=)
COMPARISON(Gt, >)
COMPARISON(Ge, >=)
