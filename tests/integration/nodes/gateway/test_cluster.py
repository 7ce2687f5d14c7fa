"""The gateway on a Redis Cluster of three masters. Rule: docs/sources/nodes.md#tests.

The tests are those of a single Redis. This module only replaces the Redis.
"""

from typing import Any

import pytest

from tests.integration.nodes.gateway.test_failures import (
    test_a_job_for_a_missing_model_goes_to_another_node,
    test_a_lost_node_s_job_goes_to_another_node,
    test_a_node_that_comes_back_goes_on_with_its_jobs,
    test_a_node_that_takes_too_long_is_left_for_another_and_its_late_result_is_dropped,
    test_a_returning_session_gets_the_answer_that_it_missed,
)
from tests.integration.nodes.gateway.test_instances import (
    pair,
    test_a_node_that_moves_takes_its_job_along,
    test_a_slot_freed_at_one_instance_serves_a_job_that_waits_at_another,
    test_cross_instance_delivery,
    test_one_request_fifty_times_to_three_instances_is_one_job,
)
from tests.integration.nodes.gateway.test_jobs import (
    test_a_cancelled_job_ends_at_its_node_and_frees_its_slot,
    test_a_job_goes_to_a_node_and_its_result_comes_back,
    test_a_repeated_request_is_the_same_job_with_the_same_result,
    test_partial_results_come_in_their_order_and_count_as_a_start,
    test_requesters_take_turns_at_a_slot,
)
from tests.support import named_redis
from tests.support.redis_cluster import RedisCluster

__all__ = [
    "pair",
    "test_a_cancelled_job_ends_at_its_node_and_frees_its_slot",
    "test_a_job_for_a_missing_model_goes_to_another_node",
    "test_a_job_goes_to_a_node_and_its_result_comes_back",
    "test_a_lost_node_s_job_goes_to_another_node",
    "test_a_node_that_comes_back_goes_on_with_its_jobs",
    "test_a_node_that_moves_takes_its_job_along",
    "test_a_node_that_takes_too_long_is_left_for_another_and_its_late_result_is_dropped",
    "test_a_repeated_request_is_the_same_job_with_the_same_result",
    "test_a_returning_session_gets_the_answer_that_it_missed",
    "test_a_slot_freed_at_one_instance_serves_a_job_that_waits_at_another",
    "test_cross_instance_delivery",
    "test_one_request_fifty_times_to_three_instances_is_one_job",
    "test_partial_results_come_in_their_order_and_count_as_a_start",
    "test_requesters_take_turns_at_a_slot",
]

pytestmark = pytest.mark.skipif(named_redis.ON_CLUSTER, reason="all tests of this folder run on the named cluster")


@pytest.fixture
def redis_settings(redis_cluster: RedisCluster) -> dict[str, Any]:
    """An empty cluster."""
    redis_cluster.flush()
    return {"redis": {"mode": "cluster", "cluster_urls": redis_cluster.urls}}
