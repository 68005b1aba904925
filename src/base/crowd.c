/* Members enter and leave their host's group, and the largest group is searched for the one that makes room. */
#include "base/crowd.h"

#include <stdlib.h>
#include <string.h>

void kvf_crowd_init(kvf_crowd *crowd)
{
  *crowd = (kvf_crowd){0};
  kvf_list_init(&crowd->groups);
}

static kvf_crowd_group *find_group(const kvf_crowd *crowd, const kvf_host *host)
{
  for (kvf_list *node = crowd->groups.next; node != &crowd->groups; node = node->next) {
    kvf_crowd_group *group = KVF_CONTAINER_OF(node, kvf_crowd_group, in_crowd);
    if (memcmp(&group->host, host, sizeof(*host)) == 0) {
      return group;
    }
  }
  return NULL;
}

static kvf_crowd_group *add_group(kvf_crowd *crowd, const kvf_host *host)
{
  kvf_crowd_group *group = calloc(1, sizeof(*group));
  if (group != NULL) {
    group->host = *host;
    for (size_t i = 0; i < KVF_CROWD_STAGES; i++) {
      kvf_list_init(&group->members[i]);
    }
    kvf_list_push_back(&crowd->groups, &group->in_crowd);
  }
  return group;
}

static void enter(kvf_crowd *crowd, kvf_crowd_member *member, kvf_crowd_stage stage)
{
  member->stage = stage;
  member->turn = crowd->turns++;
  member->group->counts[stage]++;
  kvf_list_push_back(&member->group->members[stage], &member->in_group);
}

static void withdraw(kvf_crowd_member *member)
{
  member->group->counts[member->stage]--;
  kvf_list_remove(&member->in_group);
}

kvf_status kvf_crowd_join(kvf_crowd *crowd, kvf_crowd_member *member, const kvf_host *host)
{
  kvf_crowd_group *group = find_group(crowd, host);
  if (group == NULL) {
    group = add_group(crowd, host);
  }
  if (group == NULL) {
    return KVF_NO_MEMORY;
  }
  member->group = group;
  enter(crowd, member, KVF_CROWD_SILENT);
  group->count++;
  crowd->count++;
  return KVF_OK;
}

void kvf_crowd_leave(kvf_crowd *crowd, kvf_crowd_member *member)
{
  kvf_crowd_group *group = member->group;
  if (group == NULL) {
    return;
  }
  withdraw(member);
  member->group = NULL;
  crowd->count--;
  if (--group->count == 0) {
    kvf_list_remove(&group->in_crowd);
    free(group);
  }
}

void kvf_crowd_move(kvf_crowd *crowd, kvf_crowd_member *member, kvf_crowd_stage stage)
{
  withdraw(member);
  enter(crowd, member, stage);
}

static kvf_crowd_member *victim_of(const kvf_crowd_group *group)
{
  size_t most = 0;
  for (size_t i = 1; i < KVF_CROWD_STAGES; i++) {
    most = group->counts[i] > group->counts[most] ? i : most;
  }
  return KVF_CONTAINER_OF(group->members[most].next, kvf_crowd_member, in_group);
}

kvf_crowd_member *kvf_crowd_victim(const kvf_crowd *crowd)
{
  kvf_crowd_member *victim = NULL;
  for (kvf_list *node = crowd->groups.next; node != &crowd->groups; node = node->next) {
    const kvf_crowd_group *group = KVF_CONTAINER_OF(node, kvf_crowd_group, in_crowd);
    kvf_crowd_member *oldest = victim_of(group);
    if (victim == NULL || group->count > victim->group->count ||
        (group->count == victim->group->count && oldest->turn < victim->turn)) {
      victim = oldest;
    }
  }
  return victim;
}
