"""Mutation testing: change the code in one place, and see whether a test fails.

    python .ci/mutate.py                                  # the method and the training program; hours
    python .ci/mutate.py nnclr_hub/method training/step   # modules whose path starts so
    python .ci/mutate.py training/step --again            # the survivors, after new tests
    python .ci/mutate.py training --sample 30             # 30 mutants of each module, always the same
    python .ci/mutate.py --report                         # the scores of what ran so far

Results are kept in mutants/, so a run that was interrupted continues, and changed functions are tested again.
`mutmut show NAME` prints a mutant. docs/decisions/0029-mutation.md says what is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of OpenMP do not survive a fork

import libcst as cst
from mutmut import __main__ as mutmut
from mutmut.configuration import config
from mutmut.mutation import file_mutation
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
from mutmut.stats import status_by_exit_code

# arguments that change no result on a CPU; `strict` of zip is an assertion, which mutants leave out as well
DEVICE_ONLY = {"device", "device_type", "inplace", "memory_format", "non_blocking", "pin_memory", "stable", "strict"}
STATS = Path("mutants/mutmut-stats.json")
# modules -> the tests that must see their mutants: those of the same subject, because a run of the whole program for
# each mutant would take days. The first start of a path that matches counts.
TESTS = {
    "nnclr_hub/method/": ["tests/method", "tests/examples/test_nnclr_minimal.py"],
    "training/optimization": ["tests/training/test_optimization.py"],
    "training/step": ["tests/training/test_step.py"],
    "training/data/augment": ["tests/training/test_augment.py", "tests/training/test_view_pipeline.py"],
    "training/data/order": ["tests/training/test_data.py"],
    "training/data/crop_boxes": ["tests/training/test_augment.py"],
    "training/data/image_pack": ["tests/training/test_data.py"],
    "training/resume": ["tests/training/test_resume.py"],
    "training/checkpoint": ["tests/training/test_resume.py"],
    "training/monitor": ["tests/training/test_monitor.py"],
    "training/data/pixel_ops": ["tests/training/test_pixel_ops.py", "tests/training/test_augment.py"],
    "training/data/jitter": ["tests/training/test_jitter.py", "tests/training/test_view_pipeline.py"],
    "training/data/": ["tests/training/test_data.py", "tests/training/test_originals.py"],
    "training/evals/": ["tests/training/test_protocols.py", "tests/training/test_supervised.py"],
    "training/recipes/": ["tests/training/test_recipes.py"],
    "training/": ["tests/training"],
}


class Visitor(file_mutation.MutationVisitor):
    """Mutates functions under `torch.no_grad()` too, and leaves out what changes no result on a CPU."""

    def _skip_node_and_children(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.FunctionDef) and [ast_of(one.decorator) for one in node.decorators] == [NO_GRAD]:
            return False
        if isinstance(node, cst.Arg) and node.keyword and node.keyword.value in DEVICE_ONLY:
            return True
        return super()._skip_node_and_children(node)

    def _create_mutations(self, node: cst.CSTNode) -> None:
        before = len(self.mutations)
        super()._create_mutations(node)
        if isinstance(node, cst.Call):
            kept = [one for one in self.mutations[before:] if not removes_device(node, one.mutated_node)]
            self.mutations[before:] = kept


def ast_of(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


NO_GRAD = "torch.no_grad()"


def removes_device(call: cst.Call, mutated: cst.CSTNode) -> bool:
    """Return whether the only change of a call is an argument of DEVICE_ONLY."""
    if not isinstance(mutated, cst.Call):
        return False

    def others(one: cst.Call) -> list[str]:
        named = [(arg.keyword.value if arg.keyword else "", ast_of(arg.value)) for arg in one.args]
        return [f"{name}={value}" for name, value in named if name not in DEVICE_ONLY and not value.endswith(".device")]

    return others(call) == others(mutated) and ast_of(call.func) == ast_of(mutated.func)


class FastestFirst(PytestRunner):
    """Runs the cheapest tests of a mutant first, because one failure is enough."""

    def run_tests(self, *, mutant_name, tests) -> int:
        return super().run_tests(mutant_name=mutant_name, tests=sorted(tests, key=state().duration_by_test.__getitem__))


def results(prefixes: list[str]) -> dict[str, dict[str, int | None]]:
    """Return {module: {mutant: exit code of its tests, None where they did not run}}."""
    found = {}
    for path in sorted(Path("mutants").rglob("*.py.meta")):
        module = str(path.relative_to("mutants"))[: -len(".py.meta")]
        if not prefixes or module.startswith(tuple(prefixes)):
            found[module] = json.loads(path.read_text())["exit_code_by_key"]
    return {module: mutants for module, mutants in found.items() if mutants}


def report(prefixes: list[str]) -> None:
    """Print one row per module, and the score: mutants that a test sees, of those with a result."""
    print("| module | mutants | killed | survived | no test | no result | score |\n|---|---|---|---|---|---|---|")
    total: Counter[str] = Counter()
    for module, mutants in results(prefixes).items():
        count = Counter(status_by_exit_code[code] for code in mutants.values())
        total += count
        print(row(module, count))
    print(row("all", total))


def row(name: str, count: Counter[str]) -> str:
    dead, alive, bare = count["killed"] + count["timeout"], count["survived"], count["no tests"]
    ran = dead + alive + bare
    score = f"{dead / ran:.1%}" if ran else ""
    return f"| {name} | {count.total()} | {dead} | {alive} | {bare} | {count.total() - ran} | {score} |"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("modules", nargs="*", help="starts of paths")
    arguments.add_argument("--again", action="store_true", help="run the mutants that survived")
    arguments.add_argument("--sample", type=int, help="most mutants of a module, chosen at random")
    arguments.add_argument("--report", action="store_true", help="print the scores only")
    arguments.add_argument("--jobs", type=int, default=2, help="processes that run tests (2)")
    chosen = arguments.parse_args()
    chosen.modules = [one.removesuffix(".py") for one in chosen.modules]
    if not chosen.report:
        run(chosen.modules, chosen.again, chosen.jobs, chosen.sample)
    report(chosen.modules)


def run(prefixes: list[str], again: bool, jobs: int, sample: int | None = None) -> None:
    """Make the mutants, and run those of the modules, or of a sample of each, that have no result."""
    file_mutation.MutationVisitor = Visitor
    from mutmut.workers import isolation

    isolation.PytestRunner = FastestFirst
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = folder  # interrupted tests leave their files
        Path("mutants").mkdir(exist_ok=True)
        mutmut.copy_src_dir()
        mutmut.create_mutants(jobs)
        final = {"killed", "timeout"} | (set() if again else {"survived", "no tests"})
        waiting: dict[str, list[str]] = {}
        for module, mutants in results(prefixes).items():
            group = next(start for start in TESTS if module.startswith(start))
            # also those whose tests were interrupted, skipped or crashed: nobody knows what they would have seen
            chosen = random.Random(0).sample(sorted(mutants), min(sample or len(mutants), len(mutants)))
            names = [name for name in chosen if status_by_exit_code[mutants[name]] not in final]
            waiting.setdefault(group, []).extend(names)
        for group, names in waiting.items():
            if names:
                print(f"{group}: {len(names)} mutants", flush=True)
                STATS.unlink(missing_ok=True)  # which tests run a function: those of this group
                state().duration_by_test.clear()
                state().tests_by_mangled_function_name.clear()
                config().pytest_add_cli_args_test_selection = TESTS[group]
                mutmut._run(names, jobs)


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    main()
