/* Intrusive doubly linked list. A node that is in no list points to itself, so removing twice is harmless. */
#ifndef KVF_BASE_LIST_H
#define KVF_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

typedef struct kvf_list {
  struct kvf_list *next;
  struct kvf_list *prev;
} kvf_list;

#define KVF_CONTAINER_OF(ptr, type, member) ((type *)(void *)((char *)(ptr) - offsetof(type, member)))

static inline void kvf_list_init(kvf_list *list)
{
  list->next = list;
  list->prev = list;
}

static inline bool kvf_list_is_empty(const kvf_list *list)
{
  return list->next == list;
}

/* Whether `node` is in some list. */
static inline bool kvf_list_is_linked(const kvf_list *node)
{
  return node->next != node;
}

static inline void kvf_list_remove(kvf_list *node)
{
  node->prev->next = node->next;
  node->next->prev = node->prev;
  kvf_list_init(node);
}

/* `node` must be in no list. */
static inline void kvf_list_push_back(kvf_list *list, kvf_list *node)
{
  node->prev = list->prev;
  node->next = list;
  list->prev->next = node;
  list->prev = node;
}

/* Puts `node` at the end unless it is in a list already. */
static inline void kvf_list_ensure_back(kvf_list *list, kvf_list *node)
{
  if (!kvf_list_is_linked(node)) {
    kvf_list_push_back(list, node);
  }
}

/* The first node, taken out; NULL if there is none. */
static inline kvf_list *kvf_list_pop_front(kvf_list *list)
{
  if (kvf_list_is_empty(list)) {
    return NULL;
  }
  kvf_list *node = list->next;
  kvf_list_remove(node);
  return node;
}

#endif
