"""Mutation testing: change the code in one place, and see whether a test fails.

    python .ci/mutate.py                                  # the method and the training program; hours
    python .ci/mutate.py nnclr_hub/method training/step   # modules whose path starts so
    python .ci/mutate.py training/step --again            # the survivors, after new tests
    python .ci/mutate.py training --sample 30             # 30 mutants of each module, always the same
    python .ci/mutate.py --report                         # the scores of what ran so far

Results are kept in mutants/, so a run that was interrupted continues, and changed functions are tested again.
`mutmut show NAME` prints a mutant. docs/results/mutation.md says what is left out.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import resource
import signal
import struct
import sys
import tempfile
from collections import Counter, defaultdict
from math import ceil
from os import waitstatus_to_exitcode
from pathlib import Path
from time import process_time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of OpenMP do not survive a fork

import libcst as cst
import pytest
from mutmut import __main__ as mutmut
from mutmut.configuration import config
from mutmut.mutation import file_mutation
from mutmut.state import state
from mutmut.stats import status_by_exit_code
from mutmut.utils.format_utils import mangled_name_from_mutant_name

# arguments that change no result on a CPU; `strict` of zip is an assertion, which mutants leave out as well, and
# test_no_pickles.py finds `weights_only` in the source
DEVICE_ONLY = {"device", "device_type", "inplace", "map_location", "memory_format", "non_blocking", "pin_memory"}
DEVICE_ONLY |= {"stable", "strict", "weights_only"}
# modules -> the tests that must see their mutants: those of the same subject, because a run of the whole program for
# each mutant would take days. The first start of a path that matches counts.
TESTS = {
    "nnclr_hub/method/": ["tests/method", "tests/examples/test_nnclr_minimal.py"],
    "training/optimization": ["tests/training/test_optimization.py"],
    "training/step": ["tests/training/test_step.py"],
    "training/data/augment": [
        "tests/training/test_augment.py",
        "tests/training/test_view_pipeline.py",
        "tests/training/test_originals.py::test_batches_from_any_step_and_of_any_rank_equal_those_of_one_uninterrupted_process",
    ],
    "training/data/pixel_ops": [
        "tests/training/test_pixel_ops.py",
        "tests/training/test_augment.py",
        "tests/training/test_view_pipeline.py",
    ],
    "training/data/cutting": ["tests/training/test_augment.py", "tests/training/test_originals.py"],
    "training/data/batches": ["tests/training/test_data.py"],
    "training/data/image_pack": ["tests/training/test_data.py"],
    "training/data/": ["tests/training/test_data.py", "tests/training/test_originals.py"],
    "training/checkpoint": ["tests/training/test_resume.py"],
    "training/monitor": ["tests/training/test_monitor.py"],
    "training/evaluation": ["tests/training/test_evaluation.py", "tests/training/test_pretrain.py"],
    "training/evals/features": ["tests/training/test_protocols.py", "tests/training/test_evaluate.py"],
    "training/evals/frozen": ["tests/training/test_protocols.py", "tests/training/test_evaluation.py"],
    "training/evals/": [
        "tests/training/test_protocols.py",
        "tests/training/test_supervised.py",
        "tests/training/test_evaluate.py",
    ],
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
        kept = [one for one in self.mutations[before:] if not changes_nothing(node, one.mutated_node)]
        self.mutations[before:] = kept


def ast_of(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


NO_GRAD = "torch.no_grad()"


def changes_nothing(node: cst.CSTNode, mutated: cst.CSTNode) -> bool:
    """Return whether only a sentence changes, an argument that names a device, or False to None in a call."""
    if isinstance(node, cst.SimpleString):
        return " " in node.value
    if isinstance(node, cst.Assign):
        return ast_of(node.value).endswith(".device")
    if not isinstance(node, cst.Call) or not isinstance(mutated, cst.Call):
        return False
    if len(node.args) == len(mutated.args):
        pairs = zip(node.args, mutated.args, strict=True)
        changed = [one for one, other in pairs if not one.deep_equals(other)]
    else:
        names = {arg.keyword.value if arg.keyword else ast_of(arg.value) for arg in mutated.args}
        changed = [arg for arg in node.args if (arg.keyword.value if arg.keyword else ast_of(arg.value)) not in names]
    if not changed or ast_of(node.func) != ast_of(mutated.func):
        return False
    same_truth = len(node.args) == len(mutated.args) and all(ast_of(arg.value) == "False" for arg in changed)
    return same_truth or all(names_device(arg) for arg in changed)


def names_device(argument: cst.Arg) -> bool:
    keyword = argument.keyword.value if argument.keyword else ""
    return keyword in DEVICE_ONLY or ast_of(argument.value).endswith("device")


class Mutants:
    """A plugin of pytest that runs all tests once, then the tests of each mutant in a fork, the cheapest first.

    So nothing is imported, collected or set up twice, except session fixtures that the mutated function takes part in.
    """

    def __init__(self, names: list[str], jobs: int) -> None:
        self.names, self.jobs = names, jobs
        self.failed = False
        self.seconds: dict[pytest.Item, float] = defaultdict(float)
        self.calls: dict[pytest.Item, set[str]] = {}  # test -> mutated functions that it calls
        self.fixtures: dict[pytest.FixtureDef, set[str]] = {}  # fixture that outlives a test -> such functions
        self.kills: Counter[tuple[str, int]] = Counter()  # (function, test) -> its mutants that the test noticed

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef, request: pytest.FixtureRequest):
        around, state()._stats = state()._stats, set()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                needs = [request._get_active_fixturedef(name) for name in fixturedef.argnames if name != "request"]
                self.fixtures[fixturedef] = state()._stats.union(*(self.fixtures.get(one, ()) for one in needs))
            state()._stats |= around

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = session.items
        for number, item in enumerate(items):
            state()._stats, start = set(), process_time()
            run_test(item, items[(number + 1) % len(items)])  # never None, which would end the session's fixtures
            used = [self.fixtures.get(found[-1], ()) for found in item._fixtureinfo.name2fixturedefs.values()]
            self.calls[item], self.seconds[item] = state()._stats.union(*used), process_time() - start
            if self.failed:
                raise SystemExit(f"{item.nodeid} fails without a mutant")
        if os.waitpid(self.fork("", items)[0], 0)[1]:
            raise SystemExit("the tests fail in a fork, without a mutant")
        running: dict[int, tuple[str, mmap.mmap]] = {}
        for done, name in enumerate(self.names):
            function = mangled_name_from_mutant_name(name)
            tests = [item for item in items if function in self.calls[item]]
            if not tests:
                record(name, NO_TEST)
                continue
            cost = {item: self.seconds[item] / (1 + self.kills[function, items.index(item)]) for item in tests}
            pid, killer = self.fork(name, sorted(tests, key=cost.__getitem__))
            running[pid] = (name, killer)
            while len(running) >= (self.jobs if done + 1 < len(self.names) else 1):
                self.collect(running)
        return True

    def fork(self, name: str, tests: list[pytest.Item]) -> tuple[int, mmap.mmap]:
        """Run the tests in a fork until one fails; return the process, and the memory that holds the test's number."""
        killer = mmap.mmap(-1, 8)
        pid = os.fork()
        if pid:
            return pid, killer
        try:
            os.environ["MUTANT_UNDER_TEST"] = name
            seconds = sum(self.seconds[test] for test in tests)
            limit = ceil(process_time() + 5 + 4 * seconds)
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
            signal.alarm(ceil(60 + 20 * seconds))
            function = mangled_name_from_mutant_name(name) if name else ""
            for fixture, functions in self.fixtures.items():
                if function in functions:
                    fixture.cached_result = None
            self.failed = False
            for test, following in zip(tests, [*tests[1:], tests[0]], strict=True):
                run_test(test, following)
                if self.failed:
                    killer[:] = struct.pack("q", test.session.items.index(test))
                    if not name:
                        print(test.nodeid, flush=True)
                    os._exit(KILLED)
            os._exit(SURVIVED)
        except BaseException:  # noqa: BLE001 (a fork never returns)
            os._exit(NO_RESULT)

    def collect(self, running: dict[int, tuple[str, mmap.mmap]]) -> None:
        """Wait for one process, and record its result."""
        pid, status = os.wait()
        if pid not in running:
            return  # a test left it behind
        name, killer = running.pop(pid)
        code = waitstatus_to_exitcode(status)
        if code == KILLED:
            self.kills[mangled_name_from_mutant_name(name), struct.unpack("q", killer[:])[0]] += 1
        record(name, TIMEOUT if code == -signal.SIGALRM else code)


SURVIVED, KILLED, NO_TEST, NO_RESULT, TIMEOUT = 0, 1, 33, 35, 36  # exit codes of mutmut.stats


def run_test(item: pytest.Item, following: pytest.Item) -> None:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def record(name: str, code: int) -> None:
    path = Path(f"{name.rpartition('.')[0].replace('.', '/')}.py.meta")  # in mutants/
    meta = json.loads(path.read_text())
    meta["exit_code_by_key"][name] = code
    path.with_suffix(".new").write_text(json.dumps(meta, indent=4))
    path.with_suffix(".new").replace(path)


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
    print("| module | mutants | killed | survived | no test | no result | score | 95% |")
    print("|---|---|---|---|---|---|---|---|")
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
    low, high = proportion_interval(dead, ran) if 0 < ran < count.total() else (0, 0)  # of a sample
    interval = f"{low:.0%} to {high:.0%}" if high else ""
    return f"| {name} | {count.total()} | {dead} | {alive} | {bare} | {count.total() - ran} | {score} | {interval} |"


def proportion_interval(successes: int, trials: int) -> tuple[float, float]:
    """Return Wilson's 95% interval."""
    z2, share = 1.96**2, successes / trials
    center, spread = share + z2 / (2 * trials), (z2 * (share * (1 - share) + z2 / (4 * trials)) / trials) ** 0.5
    return (center - spread) / (1 + z2 / trials), (center + spread) / (1 + z2 / trials)


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
    Path("mutants").mkdir(exist_ok=True)
    for path in Path("mutants").rglob("*.py"):
        if not path.stat().st_size:
            path.unlink()  # the process was killed before it wrote the mutants
    mutmut.copy_src_dir()
    mutmut.copy_also_copy_files()
    mutmut.create_mutants(jobs)
    seen, unseen = {"killed", "timeout"}, {"survived", "no tests"}
    waiting: dict[tuple[str, ...], list[str]] = {}  # tests -> mutants
    for module, mutants in results(prefixes).items():
        tests = next(tuple(tests) for start, tests in TESTS.items() if module.startswith(start))
        # also those whose tests were interrupted or crashed: nobody knows what they would have seen
        chosen = random.Random(0).sample(sorted(mutants), min(sample or len(mutants), len(mutants)))
        names = [name for name in chosen if status_by_exit_code[mutants[name]] not in seen | unseen]
        names += [name for name in mutants if again and status_by_exit_code[mutants[name]] in unseen]
        waiting.setdefault(tests, []).extend(names)
    for tests, names in waiting.items():
        if names:
            print(f"{' '.join(tests)}: {len(names)} mutants", flush=True)
            worker = os.fork()
            if not worker:
                run_group(tests, names, jobs)
            if os.waitpid(worker, 0)[1]:
                raise SystemExit(f"{' '.join(tests)} did not run; see mutants/pytest.log.")


def run_group(tests: tuple[str, ...], names: list[str], jobs: int) -> None:
    """Run the mutants in this process, which imports them and the tests, and end it."""
    with open("mutants/pytest.log", "w") as log, tempfile.TemporaryDirectory() as folder:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = folder  # interrupted tests leave their files
        os.environ["MUTANT_UNDER_TEST"] = "stats"  # functions add their names to state()._stats
        config()  # reads pyproject.toml here
        mutmut.setup_source_paths()
        os.chdir("mutants")
        os.environ["PYTHONPATH"] = os.getcwd()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        args = [*config().pytest_add_cli_args, "--rootdir=.", "--tb=native", "-q", "-s", *tests]
        code = pytest.main(args, plugins=[Mutants(names, jobs)])
        log.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    main()
