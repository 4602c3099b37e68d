from service.engine.supervision.backoff import LONGEST_SECONDS, backoff


def test_the_wait_grows_up_to_a_ceiling_however_many_failures() -> None:
    assert backoff(0) == 0
    for failures, longest in ((1, 0.5), (2, 1.5), (3, 3.5), (10, LONGEST_SECONDS), (5000, LONGEST_SECONDS)):
        waits = [backoff(failures) for _ in range(50)]
        assert longest / 2 <= min(waits) < max(waits) <= longest
