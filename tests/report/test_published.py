import subprocess
import sys
from importlib import resources

import pandas as pd
import pytest
from wording import refused

from corerl.report.published import COLUMNS, main, neorl2, read_published, sample_std, shipped
from corerl.report.published_tables import of_our_kind


@pytest.mark.parametrize("name", shipped())
def test_shipped_tables_are_sound(name):
    table = read_published(name)
    assert list(table.columns) == COLUMNS
    assert table["mean"].notna().all()
    assert (table["std"].dropna() >= 0).all()
    assert (table["seeds"].dropna() >= 1).all()
    assert set(table["ddof"].dropna()) <= {0.0, 1.0}
    assert table["task"].str.match(r"[a-z0-9-]+/\S+$").all()
    assert not table["source"].str.contains("memory|unverified", case=False).any()
    source = table["source"].str.split(" (", regex=False).str[0]
    keys = pd.concat([table[["algorithm", "task", "protocol"]], source], axis=1)
    assert not keys.duplicated().any()


def test_the_whole_table_is_tidy():
    """Also the rows that no report can show: success rates, costs, regret."""
    with (resources.files("corerl.published") / "published.csv").open("r") as file:
        rows = pd.read_csv(file, dtype=str, keep_default_na=False)
    assert set(rows.columns) == {"table", "version", *COLUMNS}
    steps = pd.to_numeric(rows["steps"])
    assert (steps.dropna() > 0).all() and steps.notna().mean() > 0.5
    assert rows[["table", "algorithm", "task", "metric", "mean", "source"]].ne("").all(axis=None)
    assert pd.to_numeric(rows["mean"]).notna().all()
    reported = rows["source"] + rows["notes"]
    assert not reported.str.contains("memory|unverified", case=False).any()
    source = rows["source"].str.split(" (", regex=False).str[0]
    keys = rows[["table", "algorithm", "task", "metric", "protocol"]].assign(source=source)
    assert not keys.duplicated().any()
    named = rows["task"].str.extract(r"-(v\d+)$")[0]
    assert (rows["version"] == named)[rows["task"].str.startswith("d4rl/") & named.notna()].all()
    assert set(shipped()) < set(rows["table"])


def test_these_shipped_protocols_are_no_single_evaluation_of_ours():
    protocols = set(pd.concat([read_published(name) for name in shipped()])["protocol"])
    assert {protocol for protocol in protocols if not of_our_kind(protocol)} == {
        "",
        "after fine-tuning",
        "after pre-training",
        "as quoted by the author of the issue",
        "eval return mean of iterations 96-100",
        "eval return mean of last 5 of 199 logged iterations",
        "eval return mean of last 5 of 201 logged iterations",
        "evaluation at 1M steps (approximate, as quoted)",
        "lowest validation error, best of 6 configurations",
        "mean of the last 10 evaluations",
        "mean of the last 3 evaluations",
        "mean of the last 5 evaluations",
        "read by eye by a third party off WSRL paper Figure 17",
        "training episodes at 1M steps",
    }


def test_fine_tuning_keeps_before_and_after_apart():
    rows = read_published("d4rl_finetuning")
    cal_ql = rows[(rows["algorithm"] == "Cal-QL") & (rows["task"] == "d4rl/antmaze-umaze-v2")]
    corl = cal_ql[cal_ql["source"].str.startswith("CORL")].set_index("source")["mean"]
    assert sorted(corl) == [76.75, 99.75] and corl.index.is_unique


def test_d4rl_offline_holds_known_cells():
    table = read_published("d4rl_offline").set_index(["algorithm", "task"]).sort_index()
    corl = table[table["source"].str.startswith("CORL ")]
    row = corl.loc[("IQL", "d4rl/halfcheetah-medium-v2")].set_index("protocol")["mean"]
    assert row.to_dict() == {"last": 48.31, "best": 48.84}
    rebrac = table[table["source"].str.startswith("ReBRAC paper")]
    assert rebrac.loc[[("ReBRAC", "d4rl/antmaze-umaze-v2")], "mean"].tolist() == [97.8]


def test_a_table_of_ones_own(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("algorithm,task,mean,source\nA,d4rl/x,1.5,me\n")
    row = read_published(str(file)).iloc[0]
    assert row["mean"] == 1.5 and row["protocol"] == "" and pd.isna(row["std"])
    file.write_text("algorithm,task,mean,source\nA,d4rl/x,1.5 ± 2,me\n")
    with refused("mine.csv 2 1.5"):
        read_published(str(file))
    file.write_text("algorithm,task,mean\nA,d4rl/x,1.5\n")
    with refused("source"):
        read_published(str(file))


FULL = {"algorithm": "A", "task": "d4rl/x", "mean": "1.5", "std": "1", "seeds": "5", "ddof": "1"}
FULL |= {"steps": "1e6", "metric": "", "protocol": "last", "source": "me"}


def own(tmp_path, **changes: str) -> pd.Series:
    """The second of two rows of a file of one's own, as it is read."""
    rows = [FULL, FULL | {"task": "d4rl/y"} | changes]
    pd.DataFrame(rows).to_csv(tmp_path / "mine.csv", index=False)
    return read_published(str(tmp_path / "mine.csv")).iloc[1]


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("mean", "", "empty"),
        ("mean", "inf", "inf"),
        ("std", "-1.0", "-1.0 0"),
        ("seeds", "2.5", "2.5"),
        ("seeds", "0", "0"),
        ("steps", "inf", "inf"),
        ("ddof", "2", "2 0 1"),
        ("metric", "cost", "cost"),
    ],
)
def test_a_field_that_cannot_be_is_named_with_its_row(tmp_path, column, value, problem):
    with refused(f"mine.csv 3 {column} {problem}"):
        own(tmp_path, **{column: value})


def test_a_file_of_ones_own_may_have_blanks_and_the_units_of_score_files(tmp_path):
    row = own(tmp_path, algorithm=" IQL ", protocol=" last", metric=" Normalised", std=" ")
    assert (row["algorithm"], row["protocol"], row["metric"]) == ("IQL", "last", "score")
    assert pd.isna(row["std"]) and own(tmp_path, metric="raw")["metric"] == "return"


def test_population_std_is_widened():
    assert sample_std(1.0, 4, 0) == pytest.approx((4 / 3) ** 0.5)
    assert sample_std(1.0, 2, 0) == pytest.approx(2**0.5)
    assert sample_std(1.0, 4, 1) == 1.0


# benchmark/task_score.csv of polixir/NeoRL2@b50d91d, as printed
NEORL2 = """
,bc,cql,edac,mcq,td3bc,mopo,combo,rambo,mobile
Pipeline,68.61±13.42,81.08±8.25,72.88±4.64,49.7±7.39,81.95±7.46,-26.33±92.65,55.5±4.28,24.06±74.39,65.51±4.05
Simglucose,75.07±0.71,10.99±3.35,8.11±0.31,29.57±5.65,74.21±0.38,34.64±28.13,23.18±2.47,10.8±0.86,9.29±0.17
RocketRecovery,72.75±2.53,74.32±1.44,65.65±9.81,76.46±0.81,79.74±0.91,-27.66±105.61,74.66±0.7,-44.21±263.0,43.71±17.53
RandomFrictionHopper,28.03±0.35,32.96±1.23,34.69±1.29,31.74±1.25,29.51±0.66,32.48±5.79,34.08±4.74,29.62±7.15,35.12±0.47
DMSD,65.09±1.64,70.24±1.12,78.65±2.3,77.75±1.16,60.01±0.79,68.23±0.65,68.33±0.41,76.22±1.92,64.36±0.78
Fusion,55.24±0.3,55.86±1.89,58.0±0.72,49.7±1.05,54.64±0.82,-11.6±22.2,55.48±0.28,59.63±4.99,5.02±7.05
SafetyHalfCheetah,70.16±0.38,71.18±0.61,53.11±11.14,54.65±4.32,68.58±0.39,23.71±24.28,57.79±13.27,-422.43±307.49,8.68±3.93
"""


def _printed() -> dict[tuple[str, str], str]:
    head, *lines = (line.split(",") for line in NEORL2.strip().splitlines())
    names = ["TD3+BC" if a == "td3bc" else a.upper() for a in head[1:]]
    return {(a, f"neorl2/{t}"): x for t, *xs in lines for a, x in zip(names, xs, strict=True)}


def test_neorl2_as_printed_is_reproduced_cell_for_cell():
    table = read_published("neorl2")
    ours = table[table["source"].str.startswith("NeoRL-2 (")]
    shown = {
        (r.algorithm, r.task): f"{round(r.mean, 2)}±{round(r.std, 2)}"
        for r in ours.set_index(ours["algorithm"]).itertuples(index=False)
    }
    assert len(shown) == 63
    assert shown == _printed()


def test_keeping_configurations_apart_changes_what_neorl2_pooled():
    """Their grouping drops parameters that sort after `seed`: it pools MOPO's and RAMBO's runs."""
    table = read_published("neorl2")
    pooled = table[table["source"].str.startswith("NeoRL-2 (")].set_index(["algorithm", "task"])
    apart = table[table["source"].str.startswith("NeoRL-2 regr")].set_index(["algorithm", "task"])
    changed = pooled.index[(pooled["mean"] - apart["mean"].loc[pooled.index]).abs() > 1e-3]
    assert {a for a, _ in changed} == {"MOPO", "RAMBO"}
    assert len(changed) == 13
    assert (apart["mean"].loc[changed] > pooled["mean"].loc[changed]).all()


def test_the_shipped_table_is_what_the_command_writes(shared):
    source = shared / "data/scores/neorl2/final_scores.csv"
    made = neorl2(source)
    shipped_table = read_published("neorl2")
    pd.testing.assert_frame_equal(
        made[COLUMNS].astype({"seeds": float, "ddof": float, "steps": float}),
        shipped_table,
        check_exact=False,
    )
    done = subprocess.run(
        [sys.executable, "-m", "corerl.report.published"], capture_output=True, text=True
    )
    assert done.returncode == 1 and "FINAL_SCORES_CSV" in done.stderr


@pytest.mark.parametrize("words", [["absent.csv"], ["own.csv", "out.csv"]])
def test_what_is_no_file_of_neorl2_is_a_sentence(tmp_path, monkeypatch, words):
    (tmp_path / "own.csv").write_text("algorithm,task,seed,score\nA,t,0,1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["published", *words])
    with pytest.raises(SystemExit, match=rf"^corerl: {words[0]} (is not a|has no)"):
        main()
    assert not (tmp_path / "out.csv").exists()
