import csv
import io
import math

from wording import says

from corerl.report.formats import to_csv, to_latex, to_markdown, to_text, unguarded
from corerl.report.html_tables import to_html
from corerl.report.tables import DOWN, UP, Cell, Column, Row, Table, digits_of, short

TABLE = Table(
    "scores",
    "A & B",
    "task",
    (Column("IQL", n="10"), Column("TD3+BC_x")),
    (
        Row(
            "hopper",
            (Cell(66.25, 5.7, n="10", top=True), Cell(59.04, 3.2, n="5")),
            key="d4rl/hopper",
        ),
        Row("pen", (None, Cell(-0.04, math.nan, n="1", mark=DOWN))),
        Row("IQM", (Cell(1.0, low=0.5, high=1.5, interval=True), Cell(2.0, interval=True)), True),
    ),
    notes=("a note",),
)


def test_text_lines_up_and_says_n():
    title, _, head, rule, *lines = to_text(TABLE).splitlines()
    assert title == "A & B" and set(rule) == {"-"}
    assert head.split() == ["task", "IQL", "(n=10)", "TD3+BC_x"]
    hopper, pen, second, iqm, _, note = lines
    assert second == rule and note == "a note"
    assert hopper.split("  ")[-1].strip() == "59.0 ± 3.2 (n=5)"
    assert "66.2 ± 5.7*" in hopper and "– " in pen and pen.endswith("0.0 (n=1)▼")
    assert iqm.startswith("IQM") and "1.0 [0.5, 1.5]" in iqm and iqm.endswith("2.0 [n/a]")
    ends = [hopper.index("(n=5)") + 5, pen.index("(n=1)") + 5, iqm.index("[n/a]") + 5]
    assert len(set(ends)) == 1


def test_markdown():
    text = to_markdown(TABLE)
    assert "| task | IQL (n=10) | TD3+BC_x |" in text
    assert "| hopper | **66.2 ± 5.7** | 59.0 ± 3.2 (n=5) |" in text
    assert "| pen | – | 0.0 <sub>(n=1)</sub> ▼ |" in text


def test_latex_escapes_and_has_booktabs_rules():
    text = to_latex(TABLE)
    assert r"TD3+BC\_x" in text
    assert r"hopper & \textbf{66.2 $\pm$ 5.7} & 59.0 $\pm$ 3.2 (n=5) \\" in text
    assert r"pen & -- & 0.0 \textcolor{gray}{(n=1)}$\downarrow$ \\" in text
    assert text.count(r"\midrule") == 2
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert all(line.count(" & ") == 2 for line in body)


def test_a_name_is_no_option_of_the_latex_command_before_it():
    rows = tuple(Row(name, (Cell(1.0),)) for name in ("[3cm] x", "*star", "hopper"))
    text = to_latex(Table("x", "x", "task", (Column("A"),), rows))
    assert "\\midrule\n{}[3cm] x & 1.0 \\\\\n{}*star & 1.0 \\\\\nhopper & 1.0" in text


def test_latex_needs_no_other_encoding_for_quotes_and_greek_letters():
    text = to_latex(Table("x", "x", "task", (Column('IQL "τ=0.9", π_β'),), ()))
    assert r"task & IQL \symbol{34}$\tau$=0.9\symbol{34}, $\pi$\_$\beta$ \\" in text


def test_csv_keeps_full_names_and_precision():
    rows = list(csv.DictReader(io.StringIO(to_csv(TABLE))))
    assert rows[0]["row"] == "d4rl/hopper"
    assert (rows[0]["value"], rows[0]["std"], rows[0]["n"]) == ("66.25", "5.7", "10")
    assert rows[2]["std"] == ""
    assert (rows[3]["low"], rows[3]["high"]) == ("0.5", "1.5")


def test_html_escapes():
    html = to_html(TABLE)
    assert "A &amp; B" in html
    assert '<td class="top" data-value="66.25">66.2 <span class="spread">± 5.7</span></td>' in html
    assert DOWN in html and UP not in html


HOSTILE = Table(
    "x",
    "a *b* | <i>",
    "task",
    (Column("=cmd|calc", detail="@source"),),
    (Row("[x](javascript:0) _y_ a_b `c`", (Cell(-1.0),)), Row("-1+2", (Cell(2.0),))),
    notes=("<script>",),
)


def test_text_of_others_is_no_markdown():
    text = to_markdown(HOSTILE)
    assert r"**a \*b\* \| \<i>**" in text and r"\<script>" in text
    assert r"| task | =cmd\|calc |" in text
    assert r"| [x]\(javascript:0) \_y\_ a_b \`c\` | -1.0 |" in text


def test_text_of_others_is_no_formula():
    head, *rows = csv.reader(io.StringIO(to_csv(HOSTILE)))
    assert [row[head.index("column")] for row in rows] == ["'=cmd|calc"] * 2
    assert rows[1][0] == "'-1+2" and rows[0][-1] == "'@source"
    assert rows[0][head.index("value")] == "-1.0"  # a number is one
    assert unguarded(rows[1][0]) == "-1+2" and unguarded("'90s") == "'90s"


SOME = Cell(50.0, low=40.0, high=60.0, n="5", interval=True, budget=(2000,))
FEW = Cell(70.0, low=69.0, high=71.0, n="2-3", interval=True, budget=(3000,), pretrained=20_000)
FLAT = Cell(100.0, low=100.0, high=100.0, n="5", interval=True, budget=(2000, 3000))
SEEDS = Table(
    "x",
    "x",
    "task",
    (Column("A"), Column("B"), Column("a name of several words")),
    (Row("IQM", (SOME, FEW, FLAT), True),),
)


def test_few_seeds_are_grey_with_their_n_and_no_width_is_no_certainty():
    assert "50.0 [40.0, 60.0] (2k steps)" in to_text(SEEDS)
    assert "70.0 [69.0, 71.0] (n=2-3, 20k+3k steps)" in to_text(SEEDS)
    assert "100.0 [n/a] (2k-3k steps)" in to_text(SEEDS)
    assert "70.0 <sub>[69.0, 71.0] (n=2-3, 20k+3k steps)</sub>" in to_markdown(SEEDS)
    assert r"70.0 \textcolor{gray}{[69.0, 71.0] (n=2-3, 20k+3k steps)}" in to_latex(SEEDS)
    assert to_html(SEEDS).count('class="spread few"') == 1
    assert "\x1b[2m[69.0, 71.0]" in to_text(SEEDS, colour=True)
    assert to_text(SEEDS, colour=True).count("\x1b[2m") == 1


def test_a_wide_table_goes_on_below_itself():
    text = to_text(SEEDS, width=60)
    assert "column 1 of 3" in text and "column 3 of 3" in text
    assert max(map(len, text.splitlines())) <= 60
    assert text.count("IQM") == 3
    says(text, "name")
    assert "columns" not in to_text(SEEDS)


def test_long_names_leave_room_for_numbers():
    row = Row("hopper-medium-stochastic: O-RAAC (naive)", (Cell(1.0), Cell(2.0)))
    table = Table("x", "x", "task", (Column("A"), Column("B")), (row,))
    *_, first, second, third, _ = to_text(table, width=50).splitlines()
    assert first.split() == ["hopper-medium-", "1.0", "2.0"]
    assert (second, third) == ("  stochastic:", "  O-RAAC (naive)")
    assert row.name in to_text(table)


def test_small_returns_show_a_digit_of_every_spread():
    small, large, alone = Cell(0.005, 1e-4), Cell(3000.0, 200.0), Cell(0.02)
    assert [digits_of([c, large, None]) for c in (small, large, alone)] == [4, 1, 2]
    assert digits_of([Cell(0.003, 150.0)]) == 1  # the mean is 0 within its spread
    assert digits_of([Cell(3000.0, 1e-5), Cell(0.0, 0.0)]) == 1
    assert digits_of([Cell(1234.5, 12.0), Cell(0.1 + 0.2 - 0.3)]) == 1  # rounding is no digit
    table = Table("x", "x", "task", (Column("A"),), (Row("t", (small,)),), digits=4)
    for text in (to_text(table), to_markdown(table), to_html(table)):
        assert "0.0050" in text and "± 0.0001" in text


def test_steps_that_some_runs_do_not_state_are_said():
    cell = Cell(1.0, budget=(1000, 2000, None), n="4")
    assert (cell.steps, cell.span) == ("1k-2k or unknown", "1000-?")
    assert (Cell(1.0, budget=(0,)).steps, Cell(1.0).steps) == ("0", "")


def test_steps_are_short_where_they_are_round():
    steps = (500, 2500, 10_000, 12_345, 1_000_000, 1_500_000, 10_000_010)
    reported = ["500", "2.5k", "10k", "12,345", "1M", "1.5M", "10,000,010"]
    assert [short(x) for x in steps] == reported
