/* Methods of Node: numbers, distributions, peers. */
#include "binding.h"

#include <stdlib.h>

typedef struct stat_list {
  kvf_stat stats[KVF_STATS_MAX];
  size_t count;
} stat_list;

static kvf_status call_stats(kvf_node *node, void *arguments)
{
  stat_list *list = arguments;
  list->count = kvf_node_stats(node, list->stats, KVF_STATS_MAX);
  return KVF_OK;
}

static PyObject *stat_object(const kvfpy_module_state *state, const void *item)
{
  const kvf_stat *stat = item;
  return kvfpy_record_object(state, KVFPY_NUMBER, "(ssKO)", stat->name, stat->reason, (unsigned long long)stat->value,
                             stat->gauge ? Py_True : Py_False);
}

PyObject *kvfpy_node_stats(kvfpy_node_object *self, PyObject *unused)
{
  (void)unused;
  stat_list taken;
  kvf_status status = KVF_OK;
  if (!kvfpy_call_node(self, call_stats, &taken, &status)) {
    return NULL;
  }
  return kvfpy_make_list(kvfpy_state_of(self), taken.stats, sizeof(taken.stats[0]), taken.count, stat_object);
}

typedef struct histogram_list {
  kvf_histogram histograms[KVF_HISTOGRAMS_MAX];
  size_t count;
} histogram_list;

static kvf_status call_histograms(kvf_node *node, void *arguments)
{
  histogram_list *list = arguments;
  list->count = kvf_node_histograms(node, list->histograms, KVF_HISTOGRAMS_MAX);
  return KVF_OK;
}

/* (bound, count, sum) of one bucket. */
static PyObject *bucket_object(const kvf_histogram *histogram, uint32_t bucket)
{
  return Py_BuildValue("(KKK)", (unsigned long long)histogram->bounds[bucket],
                       (unsigned long long)histogram->counts[bucket], (unsigned long long)histogram->sums[bucket]);
}

static PyObject *histogram_object(const kvfpy_module_state *state, const void *item)
{
  (void)state;
  const kvf_histogram *histogram = item;
  PyObject *buckets = PyList_New(0);
  for (uint32_t i = 0; buckets != NULL && i < histogram->buckets; i++) {
    if (!kvfpy_append(buckets, bucket_object(histogram, i))) {
      Py_CLEAR(buckets);
    }
  }
  return buckets == NULL ? NULL : Py_BuildValue("(sN)", histogram->name, buckets);
}

PyObject *kvfpy_node_histograms(kvfpy_node_object *self, PyObject *unused)
{
  (void)unused;
  histogram_list taken;
  kvf_status status = KVF_OK;
  if (!kvfpy_call_node(self, call_histograms, &taken, &status)) {
    return NULL;
  }
  return kvfpy_make_list(kvfpy_state_of(self), taken.histograms, sizeof(taken.histograms[0]), taken.count,
                         histogram_object);
}

typedef struct peer_list {
  kvf_peer_stat peers[KVF_PEERS_LISTED_MAX];
  size_t count;
} peer_list;

static kvf_status call_peers(kvf_node *node, void *arguments)
{
  peer_list *list = arguments;
  list->count = kvf_node_peers(node, list->peers, KVF_PEERS_LISTED_MAX);
  return KVF_OK;
}

static PyObject *links_object(const kvfpy_module_state *state, const kvf_peer_stat *peer)
{
  PyObject *list = PyList_New(0);
  for (uint32_t i = 0; i < peer->links_count; i++) {
    const kvf_link_stat *link = &peer->links[i];
    if (!kvfpy_append(list, kvfpy_record_object(state, KVFPY_LINK, "(sisO)", link->name, (int)link->breaker,
                                                kvf_status_name(link->cause), link->up ? Py_True : Py_False))) {
      Py_CLEAR(list);
      break;
    }
  }
  return list;
}

/* As kvfpy_node_stats() gives them, of what is not 0. */
static PyObject *peer_numbers(const kvfpy_module_state *state, const kvf_peer_stat *peer)
{
  const kvf_stat numbers[] = {{"handshakes", "", peer->handshakes, false, {0}},
                              {"connection_failures", "", peer->connection_failures, false, {0}},
                              {"chunks", "", peer->chunks, false, {0}},
                              {"bytes", "", peer->bytes, false, {0}},
                              {"blocks", "", peer->blocks, false, {0}},
                              {"retries", "", peer->retries, false, {0}},
                              {"stalls", "", peer->stalls, false, {0}},
                              {"reads_in_flight", "", peer->reads_in_flight, true, {0}},
                              {"users", "", peer->users, true, {0}}};
  PyObject *list = PyList_New(0);
  bool good = list != NULL;
  for (size_t i = 0; good && i < sizeof(numbers) / sizeof(numbers[0]); i++) {
    good = (numbers[i].value == 0 && !numbers[i].gauge) || kvfpy_append(list, stat_object(state, &numbers[i]));
  }
  for (unsigned i = 0; good && kvf_status_at(i) != NULL; i++) {
    const kvf_status_info *info = kvf_status_at(i);
    const kvf_stat loads = {info->status == KVF_OK ? "loads_done" : "loads_failed",
                            info->status == KVF_OK ? "" : info->name,
                            peer->loads[i],
                            false,
                            {0}};
    good = loads.value == 0 || kvfpy_append(list, stat_object(state, &loads));
  }
  if (!good) {
    Py_CLEAR(list);
  }
  return list;
}

static PyObject *peer_object(const kvfpy_module_state *state, const void *item)
{
  const kvf_peer_stat *peer = item;
  PyObject *links = links_object(state, peer);
  PyObject *numbers = links != NULL ? peer_numbers(state, peer) : NULL;
  if (numbers == NULL) {
    Py_XDECREF(links);
    return NULL;
  }
  const char *last = peer->last_failure == KVF_OK ? "" : kvf_status_name(peer->last_failure);
  return kvfpy_record_object(state, KVFPY_PEER, "(KssKNN)", (unsigned long long)peer->id, peer->address, last,
                             (unsigned long long)peer->last_failure_age_ms, links, numbers);
}

PyObject *kvfpy_node_peers(kvfpy_node_object *self, PyObject *unused)
{
  (void)unused;
  peer_list *taken = malloc(sizeof(*taken)); /* too large for a thread's stack */
  if (taken == NULL) {
    return PyErr_NoMemory();
  }
  kvf_status status = KVF_OK;
  PyObject *result = NULL;
  if (kvfpy_call_node(self, call_peers, taken, &status)) {
    result = kvfpy_make_list(kvfpy_state_of(self), taken->peers, sizeof(taken->peers[0]), taken->count, peer_object);
  }
  free(taken);
  return result;
}
