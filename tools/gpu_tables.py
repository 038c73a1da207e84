"""Tables of a record of the GPU campaign (tools/gpu.py)."""

from collections.abc import Callable, Mapping
from typing import Any

Found = dict[str, Any]
MODELS, KERNELS, ENDS = "measure/models/", "measure/kernels/", "measure/end_to_end/"


def show(record: Found) -> None:
    """Print the tables and failures of a record."""
    done = record["steps"]
    checks = {name: step for name, step in done.items() if step.get("passed") is not None}
    failed = [name for name, step in checks.items() if not step["passed"]]
    print(f"\n# GPU campaign: {record['card']['name']}, {record['date']}\n")
    print(", ".join(f"{name} {version}" for name, version in record["versions"].items() if version))
    print(f"\n{len(done)} steps in {sum(step['seconds_taken'] for step in done.values()) / 60:.1f} minutes; ", end="")
    print(f"{len(checks) - len(failed)} checks passed, {len(failed)} failed.\n")
    for why in dict.fromkeys("; ".join(map(str, done[name].get("wrong", [])))[:600] for name in failed):
        of = [name for name in failed if "; ".join(map(str, done[name].get("wrong", [])))[:600] == why]
        print(f"- {', '.join(of)}: {why}")
    for name, step in done.items():
        if "left out" in step and record["format"] > 2:
            print(f"- {name} is left out: {step['left out']}")
    rates = done.get("measure/machine", {})
    show_machine(rates)
    show_end_to_end(done)
    show_models(done, rates)
    show_kernels(done, "plain" if record["format"] == 1 else "sdpa", rates)
    show_sides(done)


def table(*head: str) -> None:
    """Print a table's head."""
    print(f"\n| {' | '.join(head)} |\n| {' | '.join('---' for _ in head)} |")


def show_machine(rates: Found) -> None:
    """Print the rates that shares below refer to."""
    if not rates:
        return
    print(f"\nA copy moves {rates['bytes_per_second'] / 1e12:.2f} TB/s, read and written;", end=" ")
    print(f"a matrix product makes {rates['operations_per_second'] / 1e12:.0f} TFLOP/s.")
    if stated := rates.get("stated"):
        print(
            f"The maker states {stated['bytes'] / 1e12:.2f} TB/s and {stated['operations'] / 1e12:.0f} TFLOP/s;",
            end=" ",
        )
        print("shares below are of the measured rates, those of the stated ones behind a slash.")


def share(rate: float, rates: Found, kind: str) -> str:
    """A rate as a share of the measured one of the card, and of the stated one where it is known."""
    names = {"operations": "operations_per_second", "bytes": "bytes_per_second"}
    if names[kind] not in rates:
        return ""
    stated = rates.get("stated", {}).get(kind)
    return f"{rate / rates[names[kind]]:.0%}{f' / {rate / stated:.0%}' if stated else ''}"


def show_kernels(done: Found, base_name: str, rates: Found) -> None:
    """Print times over one kernel's, and the shares of the card's rates."""
    for end, what, kind in (("/whole", "a whole text", "operations"), ("/one", "a step of writing", "bytes")):
        rows = {
            name.removeprefix(KERNELS).removesuffix(end).replace("/", " "): step
            for name, step in done.items()
            if name.startswith(KERNELS) and name.endswith(end) and "seconds" in step
        }
        # Steps of old records have Triton's kernel beside merges.
        base = "plain" if base_name == "plain" else "sdpa"
        rows = {name: step for name, step in rows.items() if not isinstance(step["seconds"][base], str)}
        if not rows:
            continue
        table(f"{what}, time / {base}", *rows)
        plain = [step["seconds"][base] for step in rows.values()]
        print(f"| {base}, ms | {' | '.join(f'{1000 * each:.3f}' for each in plain)} |")
        if "operations_per_second" in rates and all("needs" in step for step in rows.values()):
            found = [step["needs"][base] / each for step, each in zip(rows.values(), plain, strict=True)]
            print(f"| {base}, of the {kind} | {' | '.join(share(each, rates, kind) for each in found)} |")
        for kernel in dict.fromkeys(name for step in rows.values() for name in step["seconds"] if name != base):
            pairs = zip(rows.values(), plain, strict=True)
            cells = [_kernel_cell(step, kernel, each, rates, kind) for step, each in pairs]
            print(f"| {kernel} | {' | '.join(cells)} |")


def _kernel_cell(step: Found, kernel: str, base: float, rates: Found, kind: str) -> str:
    """The time of a kernel over another's, its spread, and its share of the card's rate."""
    taken = step["seconds"].get(kernel)
    if taken is None or isinstance(taken, str):
        return "" if taken is None else "failed"
    need = step.get("needs", {}).get(kernel)
    reached = share(need / taken, rates, kind) if need else ""
    spread = _in_brackets(step.get("spread", {}).get(kernel))
    return f"{taken / base:.2f}{spread}{reached and ', '}{reached}"


Row = tuple[str, str, str]
"""Model, method and length."""
Rows = Mapping[Row, tuple[Found, Found]]
"""Of each row, what its step says of all lengths, and of its own."""


def show_models(done: Found, rates: Found) -> None:
    """Print the figures of models under methods. A column that no row has is left out."""
    rows: Rows = {
        (name.split("/")[2], name.split("/")[3], length): (step, step[length])
        for name, step in done.items()
        if name.startswith(MODELS)
        for length in [key for key, row in step.items() if key.isdigit() and not isinstance(row, str)]
    }
    if not rows:
        return
    trained = {name.split("/")[2]: step["trained_length"] for name, step in done.items() if "trained_length" in step}
    if trained:
        print(f"\nTrained lengths: {', '.join(f'{name} {length}' for name, length in trained.items())}. ", end="")
        print("In brackets: the largest less the smallest repeat, of the median.")
    cells = {head: [cell(key) for key in rows] for head, cell in _model_columns(rows, rates).items()}
    cells = {head: column for head, column in cells.items() if any(column)}
    table("model", "length", *cells)
    for place, (model, method, length) in enumerate(rows):
        print(f"| {model}/{method} | {length} | {' | '.join(column[place] for column in cells.values())} |")


def _model_columns(rows: Rows, rates: Found) -> dict[str, Callable[[Row], str]]:
    """By its head, each column's cell of a row."""

    def over(other: str, figure: str) -> Callable[[Row], str]:
        def cell(key: Row) -> str:
            base = rows.get((key[0], other, key[2]))
            return f"{rows[key][1][figure] / base[1][figure]:.2f}" if base else ""

        return cell

    def of_operations(key: Row) -> str:
        at = rows[key][1]
        return share(at["operations"] / at["prefill"], rates, "operations") if "operations" in at else ""

    def of_bytes(key: Row) -> str:
        step, at = rows[key]
        return share((step["read_bytes"] + at["cache_bytes"]) / at["token"], rates, "bytes")

    def scaled(name: str, factor: float, digits: int) -> Callable[[Row], str]:
        def cell(key: Row) -> str:
            at = rows[key][1]
            spread = _in_brackets(at.get("spread", {}).get(name))
            return f"{at[name] * factor:.{digits}f}{spread}" if at.get(name) else ""

        return cell

    return {
        "prefill, s": scaled("prefill", 1, 3),
        "of stock": over("stock", "prefill"),
        "of the product": of_operations,
        "token, ms": scaled("token", 1000, 2),
        "of stock's": over("stock", "token"),
        "of static's": over("static", "token"),
        "with recording": scaled("token_with_recording", 1000, 2),
        "of the bandwidth": of_bytes,
        "peak, GB": scaled("write_bytes", 1e-9, 2),
        "batch, tokens/s": scaled("batch_tokens_per_second", 1, 0),
    }


def _in_brackets(spread: float | None) -> str:
    return "" if spread is None else f" ({spread:.0%})"


def show_end_to_end(done: Mapping[str, Found]) -> None:
    """Print what `lexbench run` and lm_eval took for the same work."""
    rows = {name.removeprefix(ENDS): step for name, step in done.items() if name.startswith(ENDS) and "lm_eval" in step}
    if not rows:
        return
    table("work", "side", "command, s", "of lexbench's", "working, s", "of lexbench's", "tokens/s", "agreement")
    for name, step in rows.items():
        ours = step["lexbench"]
        agreement = (
            f"{step['apart']:.1e} nats" if "apart" in step else "{} of {} answers differ".format(*step["other_answers"])
        )
        for side in ("lexbench", "lm_eval"):
            at = step[side]
            print(
                f"| {name}, {step['model']} | {side} | {at['command']:.1f} | {at['command'] / ours['command']:.2f} | "
                f"{at['within']:.2f} | {at['within'] / ours['within']:.2f} | {at['tokens_per_second']:,.0f} | "
                f"{agreement if side == 'lm_eval' else ''} |"
            )


def show_sides(done: Mapping[str, Found]) -> None:
    """Print old records' times of lm_eval's model class, and of vLLM, on networks of random weights."""
    rows = {name: step for name, step in done.items() if name.startswith("measure/sides/") and "ours" in step}
    if rows:
        table("side", "scoring, of ours", "writing, of ours")
    for name, step in rows.items():
        other = step.get("lm_eval") or step["vllm"]
        ratios = [f"{other[kind] / step['ours'][kind]:.2f}" for kind in ("score", "write")]
        print(f"| {name.removeprefix('measure/sides/')} | {' | '.join(ratios)} |")
