"""`tools/gpu/compare_versions.py`, as far as it goes without a GPU."""

import compare_versions

from corerl.bench.stopwatch import Case

TINY = {"hidden_width": 8, "batch_size": 8}


def test_the_kernels_of_an_update_are_listed_by_their_time():
    total, *lines = compare_versions.kernels(Case("bc", TINY, size=1000), most=3)
    assert total.endswith("kernels an update") and len(lines) == 3
    times = [float(line.split()[0]) for line in lines]
    assert times == sorted(times, reverse=True) and "%" in lines[0]


def test_both_versions_stand_in_a_line(monkeypatch, tmp_path, capsys):
    found = {"before": {"bc graph 1": 100.0, "sac graph 1": 5.0}, "after": {"bc graph 1": 150.0}}
    monkeypatch.setattr(compare_versions, "rates", lambda folder, out, *_: found[out.name])
    assert (
        compare_versions.main([str(tmp_path), "--algo", "bc", "--out", str(tmp_path), "--dry"]) == 0
    )
    first, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["bc", "graph", "1", "100", "->", "150", "updates/s", "x", "1.50"]
    assert second.split()[-1] == "nan"
