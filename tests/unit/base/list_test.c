/* Order of an intrusive list, and removing a node twice. */
#include "base/list.h"
#include "test.h"

typedef struct item {
  int value;
  kvf_list link;
} item;

static int pop(kvf_list *list)
{
  kvf_list *link = kvf_list_pop_front(list);
  return link == NULL ? -1 : KVF_CONTAINER_OF(link, item, link)->value;
}

TEST(first_in_first_out)
{
  item items[3];
  kvf_list list;
  kvf_list_init(&list);
  for (int i = 0; i < 3; i++) {
    items[i].value = i;
    kvf_list_init(&items[i].link);
    kvf_list_push_back(&list, &items[i].link);
  }
  kvf_list_ensure_back(&list, &items[0].link);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(pop(&list), i);
    assert_false(kvf_list_is_linked(&items[i].link));
  }
  assert_int_equal(pop(&list), -1);
}

TEST(removing_twice_is_harmless)
{
  item items[2] = {{.value = 0}, {.value = 1}};
  kvf_list list;
  kvf_list_init(&list);
  for (int i = 0; i < 2; i++) {
    kvf_list_init(&items[i].link);
    kvf_list_push_back(&list, &items[i].link);
  }
  kvf_list_remove(&items[0].link);
  kvf_list_remove(&items[0].link);
  assert_int_equal(pop(&list), 1);
  assert_true(kvf_list_is_empty(&list));
}
