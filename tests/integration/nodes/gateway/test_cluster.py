"""The gateway on a Redis Cluster of three masters. Rule: docs/sources/nodes.md#tests.

The tests are those of a single Redis. This module only replaces the Redis.
"""

from typing import Any

import pytest

from tests.integration.nodes.gateway.test_failures import (
    test_a_model_that_is_not_there_is_looked_for_elsewhere,
    test_a_node_that_comes_back_goes_on_with_its_jobs,
    test_a_node_that_is_gone_loses_its_job_to_another,
    test_a_node_that_takes_too_long_is_left_for_another_and_its_late_result_is_dropped,
    test_a_session_that_comes_back_gets_the_answer_that_came_meanwhile,
)
from tests.integration.nodes.gateway.test_instances import (
    pair,
    test_a_node_that_moves_takes_its_job_along,
    test_a_slot_that_becomes_free_at_one_instance_serves_who_waits_at_another,
    test_cross_instance_delivery,
    test_one_request_fifty_times_to_three_instances_is_one_job,
)
from tests.integration.nodes.gateway.test_jobs import (
    test_a_job_goes_to_a_node_and_its_result_comes_back,
    test_a_slot_goes_to_requesters_in_turn,
    test_cancelled_the_node_is_told_and_its_slot_is_free,
    test_partial_results_come_in_their_order_and_count_as_a_start,
    test_the_same_request_again_is_the_same_job_and_gets_the_same_result,
)
from tests.support import named_redis
from tests.support.redis_cluster import RedisCluster

__all__ = [
    "pair",
    "test_a_job_goes_to_a_node_and_its_result_comes_back",
    "test_a_model_that_is_not_there_is_looked_for_elsewhere",
    "test_a_node_that_comes_back_goes_on_with_its_jobs",
    "test_a_node_that_is_gone_loses_its_job_to_another",
    "test_a_node_that_moves_takes_its_job_along",
    "test_a_node_that_takes_too_long_is_left_for_another_and_its_late_result_is_dropped",
    "test_a_session_that_comes_back_gets_the_answer_that_came_meanwhile",
    "test_a_slot_goes_to_requesters_in_turn",
    "test_a_slot_that_becomes_free_at_one_instance_serves_who_waits_at_another",
    "test_cancelled_the_node_is_told_and_its_slot_is_free",
    "test_cross_instance_delivery",
    "test_one_request_fifty_times_to_three_instances_is_one_job",
    "test_partial_results_come_in_their_order_and_count_as_a_start",
    "test_the_same_request_again_is_the_same_job_and_gets_the_same_result",
]

pytestmark = pytest.mark.skipif(named_redis.ON_CLUSTER, reason="all tests of this folder run on the named cluster")


@pytest.fixture
def redis_settings(redis_cluster: RedisCluster) -> dict[str, Any]:
    """An empty cluster."""
    redis_cluster.flush()
    return {"redis": {"mode": "cluster", "cluster_urls": redis_cluster.urls}}
