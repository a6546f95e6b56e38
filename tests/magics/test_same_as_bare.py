"""A profiled cell does what the bare cell does: outputs, reply, history and namespace, in real kernels."""

import json
import re

import pytest

pytestmark = pytest.mark.kernel

CELLS = {
    "expression": "1 + 1",
    "expression with semicolon": "1 + 1;",
    "statements, then an expression": "a = 3\na * 2",
    "print and value": "print('x')\n'y'",
    "standard error": "import sys\nprint('to stderr', file=sys.stderr)",
    "last value": "_",
    "values by number": "sorted(Out)[:2]",
    "exception in a function": "def f():\n    return 1 / 0\nf()",
    "exception with cause": "try:\n    {}['k']\nexcept KeyError as e:\n    raise ValueError('no k') from e",
    "after an exception": "import sys\ntype(sys.last_value).__name__",
    "syntax error": "x = (\ny y",
    "indentation error": "def g():\nreturn 1",
    "unfinished string": "s = '''abc",
    "name error": "not_a_name",
    "await": "import asyncio\nawait asyncio.sleep(0.01)\n'done'",
    "await of a value, silenced": "await asyncio.sleep(0, 7);",
    "async for": "async def numbers():\n    yield 1\n    yield 2\nasync for i in numbers():\n    print(i)",
    "async with": "class C:\n    async def __aenter__(self): return 5\n    async def __aexit__(self, *a): pass\nasync with C() as c:\n    print(c)",
    "exception in a coroutine": "async def bad():\n    raise RuntimeError('late')\nawait bad()",
    "future statement": "from __future__ import annotations\ndef q(x: nosuch): pass\nq.__annotations__",
    "line magic": "%who_ls int",
    "line magic with value": "files = %who_ls int\nfiles[:1]",
    "shell": "!echo hi",
    "shell with value": "out = !echo one\nout",
    "help": "len?",
    "automatic magic": "pwd",
    "automatic call": "/str 5",
    "help first": "?abs",
    "system exit": "raise SystemExit(3)",
    "keyboard interrupt": "raise KeyboardInterrupt",
    "comment first": "# a comment\n5",
    "only a comment": "# nothing else",
    "blank lines": "\n\n6",
    "blank lines and an exception": "\n\n1 / 0",
    "closure": "k = 10\n[k + i for i in range(2)]",
    "own input": "print(len(In) > 3, In[-1].splitlines()[-1])",
    "source of a function": "import inspect\ndef h():\n    return 7\nprint(inspect.getsource(h))",
    "frame": "import sys\nfr = sys._getframe()\nprint(fr.f_lineno, fr.f_code.co_name, fr.f_globals is globals(), __name__)\ndel fr",
    "interactivity": "get_ipython().ast_node_interactivity",
    "display": "from IPython.display import display\ndisplay(1, 2)\n3",
    "class and repr": "class R:\n    def __repr__(self): return 'R!'\nR()",
    "repr that raises": "class B:\n    def __repr__(self): raise ValueError('no repr')\nB()",
    "decorated": "from functools import wraps\ndef deco(fn):\n    @wraps(fn)\n    def inner(): return fn() + 1\n    return inner\n@deco\ndef one(): return 1\none()",
    "walrus and match": "match (n := 4):\n    case 4:\n        print('four')\nn",
    "warning": "import warnings\nwarnings.filterwarnings('always', 'careful')\nwarnings.warn('careful')",
    "cell magic": "%%capture captured\nprint('hidden')",
    "captured": "captured.stdout",
    "script": "%%bash\necho from bash",
    "nested run": "r = get_ipython().run_cell('2 + 2')\nr.result",
    "indented": "    b = 4\n    b + 1",
    "prompts": ">>> 3 + 4",
    "locals": "sorted(name for name in locals() if 'tpu' in name.lower())",
    "recursion": "def rec(n): return rec(n + 1)\ntry:\n    rec(0)\nexcept RecursionError:\n    print('deep')",
    "thread": "import threading\nt = threading.Thread(target=lambda: print('in a thread'))\nt.start(); t.join()",
    "exec and eval": "exec('e1 = 1')\neval('e1 + 1')",
    "unpacked display": "x, y = 1, 2\nx, y",
    "deleted": "z9 = 1\ndel z9\n'z9' in globals()",
    "exception group": "raise ExceptionGroup('many', [ValueError(1), KeyError(2)])",
}
"""At least thirty kinds of cells, run one after another in both kernels."""

WITHOUT_COMMENT = [CELLS[name] for name in ("automatic magic", "automatic call", "indented", "prompts")]
"""IPython does these only where nothing else stands above them."""

COUNTER = """
from IPython import get_ipython
_events = []
get_ipython().events.register('pre_run_cell', lambda info: _events.append('pre'))
get_ipython().events.register('post_run_cell', lambda result: _events.append('post ' + str(result.success)))
"""
STATE = (
    "(repr(_) if type(_).__name__ != 'B' else 'B', len(In), sorted(Out), get_ipython().execution_count, "
    "sorted(n for n in globals() if not n.startswith('_i')), _events[-2:], get_ipython().last_execution_succeeded)"
)


def comparable(output):
    data = {mime: value for mime, value in output.data.items() if mime != "text/plain"}
    text = f"{output.text} {json.dumps(data, sort_keys=True)}"
    return output.kind, re.sub(r"(ipykernel_\d+/\d+\.py|ipython-input-\d+-\w+|0x[0-9a-f]+|File /tmp/\S+)", "X", text)


def what_happened(kernel, code):
    ran = kernel.run(code)
    outputs = [comparable(output) for output in ran.user_outputs]
    return ran, (ran.status, ran.count, outputs, kernel.value(STATE))


@pytest.fixture(scope="module", autouse=True)
def counted(kernel, bare_kernel):
    # The same number of cells in both, so that execution counts agree.
    bare_kernel.run("pass")
    for one in (kernel, bare_kernel):
        assert one.run(COUNTER).status == "ok"


@pytest.mark.parametrize("code", CELLS.values(), ids=CELLS)
def test_a_profiled_cell_does_what_the_bare_cell_does(kernel, bare_kernel, code):
    # A comment in place of the magic: line numbers in tracebacks must agree as well. A cell magic has to come first.
    comment = "" if code.startswith("%%") or code in WITHOUT_COMMENT else "#%%tpu_profile\n"
    ran, profiled = what_happened(kernel, "%%tpu_profile\n" + code)
    _, bare = what_happened(bare_kernel, comment + code)
    assert profiled == bare
    assert len(ran.reports) == 1
    assert ran.outputs[-1].is_report


def test_thirty_kinds_of_cells_are_compared():
    assert len(CELLS) >= 30
