"""The parser: shape of the tree, precedence, names, newlines, spans, imports."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from dsl_samples import EVERYTHING, LAYER_NORM, NAMES, SAMPLES
from pace import in_time

from polyfuse.diagnostics import DslError
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.grammar_file import grammar_text, parser
from polyfuse.frontend_dsl.syntax.imports import load, load_file, load_text
from polyfuse.frontend_dsl.syntax.parse import parse_file, parse_text


def statements(body: str) -> tuple[ast.Stmt, ...]:
    return parse_text(f"op f() {{\n{body}\n}}").ops[0].body


def expression(text: str) -> ast.Expr:
    (stmt,) = statements(f"y = {text}")
    assert isinstance(stmt, ast.Define)
    return stmt.value


def shape(expr: ast.Expr) -> str:
    """The tree with every parenthesis."""
    match expr:
        case ast.Number():
            return expr.text
        case ast.BoolLit():
            return str(expr.value)
        case ast.Name():
            return expr.id
        case ast.Splat():
            return f"{expr.id}..."
        case ast.Subscript():
            return f"{expr.name}[{', '.join(map(shape, expr.indices))}]"
        case ast.Padded():
            return f"{shape(expr.read)}/{shape(expr.outside)}"
        case ast.Reduce():
            return f"{expr.op}[{', '.join(v.var for v in expr.vars)}]({shape(expr.body)})"
        case ast.Call():
            keywords = [f"{k}={shape(v)}" for k, v in expr.keywords]
            return f"{expr.callee}({', '.join([*map(shape, expr.args), *keywords])})"
        case ast.Unary():
            return f"({expr.op} {shape(expr.arg)})"
        case ast.Binary():
            return f"({shape(expr.left)} {expr.op} {shape(expr.right)})"
        case ast.Compare():
            rest = "".join(f" {o} {shape(e)}" for o, e in zip(expr.ops, expr.operands[1:], strict=True))
            return f"({shape(expr.operands[0])}{rest})"
        case ast.Conditional():
            return f"({shape(expr.then)} if {shape(expr.cond)} else {shape(expr.other)})"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a + b * c", "(a + (b * c))"),
        ("a - b - c", "((a - b) - c)"),
        ("a / b // c % d", "(((a / b) // c) % d)"),
        ("-x ** 2", "(- (x ** 2))"),
        ("2 ** -x", "(2 ** (- x))"),
        ("2 ** -x ** 3", "(2 ** (- (x ** 3)))"),
        ("a ** b ** c", "(a ** (b ** c))"),
        ("-a * b", "((- a) * b)"),
        ("a * -b", "(a * (- b))"),
        ("--a", "(- (- a))"),
        ("not a and b or c", "(((not a) and b) or c)"),
        ("not not a", "(not (not a))"),
        ("not a == b", "(not (a == b))"),
        ("0 <= i + 1 < N", "(0 <= (i + 1) < N)"),
        ("(a < b) < c", "((a < b) < c)"),
        ("a if b else c if d else e", "(a if b else (c if d else e))"),
        ("(a if b else c) if d else e", "((a if b else c) if d else e)"),
        ("a or b if c or d else e", "((a or b) if (c or d) else e)"),
        ("(a + b) * c", "((a + b) * c)"),
        ("f(a, k=b + 1)", "f(a, k=(b + 1))"),
        ("f(a, k=1,)", "f(a, k=1)"),
        ("f()", "f()"),
        ("sum[i](x[i]) / N", "(sum[i](x[i]) / N)"),
        ("sum[i] (x[i])", "sum[i](x[i])"),
        ("sum [i](x[i])", "sum[i](x[i])"),
        ("sum[i] * (x)", "(sum[i] * x)"),
        ("mean[t] - max", "(mean[t] - max)"),
        ("max(a, b)", "max(a, b)"),
        ("sum[b..., h](x[b..., h])", "sum[b, h](x[b..., h])"),
        ("True and false", "(True and False)"),
        ("x[a[i], j]", "x[a[i], j]"),
        ("x[i - 1, j else -inf]", "x[(i - 1), j]/(- inf)"),
        ("x[a if b else c else d if e else f]", "x[(a if b else c)]/(d if e else f)"),
        ("x[k[i else 0] else y[j else 1]]", "x[k[i]/0]/y[j]/1"),
        ("1.5e-3 + 1e5", "(1.5e-3 + 1e5)"),
        ("a<-b", "(a < (- b))"),
        ("a-1", "(a - 1)"),
    ],
)
def test_precedence(text: str, expected: str) -> None:
    assert shape(expression(text)) == expected


def test_numbers() -> None:
    assert expression("1_000") == ast.Number(1000, "1_000")
    assert expression("9223372036854775807") == ast.Number(2**63 - 1, "9223372036854775807")
    value = expression("1e-5")
    assert isinstance(value, ast.Number) and isinstance(value.value, float)


def test_range_is_not_a_float() -> None:
    reduction = expression("max[i in 0..K, j in 1..2](x)")
    assert isinstance(reduction, ast.Reduce)
    assert reduction.vars[0] == ast.VarRange("i", ast.Number(0, "0"), ast.Name("K"))
    assert reduction.vars[1].upper == ast.Number(2, "2")


def test_signature() -> None:
    op = parse_text(EVERYTHING).ops[0]
    assert [(g.name, g.kind) for g in op.generics] == [("F", "float"), ("G", "float")]
    assert [p.name for p in op.params] == ["x", "table", "p", "idx", "lr", "flag"]
    assert [p.inout for p in op.params] == [False, False, True, False, False, False]
    assert op.params[0].type == ast.TensorType("F", (ast.Splat("B"), ast.Name("H")))
    assert op.params[4].default == ast.Unary("-", ast.Number(0.001, "1e-3"))
    assert op.params[5].default == ast.BoolLit(True)
    assert [r.name for r in op.results] == ["y", "l"]
    assert [shape(w) for w in op.where] == ["((H % 4) == 0)", "((N >= 3) and (N < 1_000))"]


def test_statements() -> None:
    body = parse_text(EVERYTHING).ops[0].body
    assert [type(s).__name__ for s in body] == ["Let"] + ["Define"] * 4 + ["CallStmt"] + ["Define"] * 3
    defined = [s.op for s in body if isinstance(s, ast.Define)]
    assert defined == ["+=", "max=", "min=", "=", "=", "=", "="]
    recurrence = body[7]
    assert isinstance(recurrence, ast.Define)
    assert [r.var for r in recurrence.ranges] == ["t", "j"]
    call = body[5]
    assert isinstance(call, ast.CallStmt)
    assert call.targets == ("a", "b") and [k for k, _ in call.call.keywords] == ["eps", "max"]


def test_call_without_targets() -> None:
    call, last = statements("step(p, lr=0.1); max(p)")
    assert isinstance(call, ast.CallStmt) and isinstance(last, ast.CallStmt)
    assert call.targets == () and call.call.callee == "step" and call.span.text == "step(p, lr=0.1)"
    assert last.call.callee == "max"


def test_let_without_value_and_rank_zero() -> None:
    let, define = statements("let h: f16[N]; s = 1")
    assert isinstance(let, ast.Let) and let.value is None
    assert isinstance(define, ast.Define) and define.indices is None


def test_names_shadow_operators_and_soft_keywords() -> None:
    program = parse_text(NAMES)
    assert [op.name for op in program.ops] == ["int", "where"]
    assert [p.name for p in program.ops[0].params] == ["main", "__asm__", "sum", "in", "op"]
    last = program.ops[0].body[-1]
    assert isinstance(last, ast.Define) and last.target == "where"
    assert shape(last.value) == "(sum[i](sum[i]) if (inout > 0) else f(let=inout, max=3, op=op))"
    assert program.ops[1].params[0].inout and program.ops[1].params[0].name == "inout"
    assert [shape(w) for w in program.ops[1].where] == ["(inout > 0)", "(op > where)", "(inout and in)"]
    assert [type(s) for s in program.ops[1].body] == [ast.Define, ast.Let, ast.Define]


@pytest.mark.parametrize("name", ["max", "min", "sum", "mean", "in", "op", "let", "where", "inout", "import"])
def test_soft_names_as_targets(name: str) -> None:
    spelled = statements(f"{name}[i] = 1\n{name}=2\n{name} = {name}\n{name} += 1")
    assert [s.target for s in spelled if isinstance(s, ast.Define)] == [name] * 4


def test_scatter_is_one_token_after_a_target_only() -> None:
    scatter, keyword = statements("t[i] max= 3\ny = f(max=3) if max==3 else min")
    assert isinstance(scatter, ast.Define) and scatter.op == "max="
    assert isinstance(keyword, ast.Define)
    assert shape(keyword.value) == "(f(max=3) if (max == 3) else min)"


@pytest.mark.parametrize(
    "body",
    [
        "a = 1\nb = 2",
        "a = 1; b = 2",
        ";; a = 1;;\n;\n\n b = 2;",
        "a =\n1\nb = (\n2\n)",
        "a = 1 # comment\n# more\n\n b = 2 #",
        "a = x +\n  # why\n  y\nb = f(x,\n y)",
        "a = x if c else\n  y\nb = sum[i,\n j](\n x)",
        "a = not\n x\r\nb = 2\r\n",
        "\ta = 1\n\tb\t=\t2",
        "a = x\n  + y\n  - z\nb = 1",
        "a = x\n  # why\n\n  if c\n  else y\nb = 1",
        "a[i] = x[i]\n  for i in 0..3\nb\n  = x",
        "a = x\n  and y\n  or not z\n\nb = x\r\n  <= y\n  != z",
        "a = x\n  * y\n  // z % w\nb = x\n  / y\n  ** -2",
    ],
)
def test_newlines(body: str) -> None:
    assert [s.target for s in statements(body) if isinstance(s, ast.Define)] == ["a", "b"]


def test_names_that_begin_like_operators_begin_statements() -> None:
    found = statements("order = 1\niffy = 2\nandy = 3\nformula = 4\nelsewhere = 5")
    assert [s.target for s in found] == ["order", "iffy", "andy", "formula", "elsewhere"]


def test_reduction_needs_its_parenthesis_on_the_same_line() -> None:
    found = statements("y = sum[i]\n(a, b) = f(x)")
    assert [type(s) for s in found] == [ast.Define, ast.CallStmt]


def test_spans() -> None:
    text = "op f(x: f32[N], inout p: f32 = -1) -> (y: f32[N]) {\n  y[i] = (x[i] + 1) * 2 for i in 0..N\n}\n"
    (op,) = parse_text(text).ops
    assert op.span.text == text.strip() and op.name_span.text == "f"
    assert [p.span.text for p in op.params] == ["x: f32[N]", "inout p: f32 = -1"]
    assert op.params[0].type.span.text == "f32[N]" and op.params[0].type.dtype_span.text == "f32"
    (stmt,) = op.body
    assert isinstance(stmt, ast.Define) and isinstance(stmt.value, ast.Binary)
    assert stmt.span.text == "y[i] = (x[i] + 1) * 2 for i in 0..N"
    assert stmt.target_span.text == "y" and stmt.ranges[0].span.text == "i in 0..N"
    assert stmt.value.span.text == "(x[i] + 1) * 2"
    assert stmt.value.left.span.text == "x[i] + 1"
    assert (stmt.span.line, stmt.span.column) == (2, 3)


def test_comments_are_kept_with_their_places() -> None:
    program = parse_text("# a\nop f() { # b\n  y = 1\n\t# c # d \n}")
    assert [(c.text, c.own_line, c.span.line) for c in program.comments] == [
        ("# a", True, 1),
        ("# b", False, 2),
        ("# c # d", True, 4),
    ]


def test_bom_and_crlf() -> None:
    program = parse_text("\ufeff" + LAYER_NORM.replace("\n", "\r\n"))
    assert program == parse_text(LAYER_NORM)
    assert program.ops[0].span.column == 1


@pytest.mark.parametrize("levels", [100, 190])
def test_deep_but_allowed(levels: int) -> None:
    expression("(" * levels + "x" + ")" * levels)
    expression("-" * levels + "x")
    expression("**".join("x" * levels))
    expression(" + ".join("x" * levels))
    expression("x if c else " * levels + "x")
    expression("f(" * levels + "x" + ")" * levels)


def test_many_statements_and_operands() -> None:
    text = "\n".join(f"y{i} = f({', '.join('abcdefgh')})" for i in range(2000))
    assert len(statements(text)) == 2000
    assert len(expression(f"f({', '.join(['x'] * 5000)})").args) == 5000  # type: ignore[union-attr]


def test_hash_of_python_does_not_matter() -> None:
    code = f"from polyfuse.frontend_dsl.syntax.parse import parse_text; print(parse_text({EVERYTHING!r}))"
    root = Path(__file__).parents[3]
    outputs = set()
    for seed in ("1", "2"):
        env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        outputs.add(
            subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True).stdout
        )
    assert len(outputs) == 1


def test_parser_is_built_once_and_fast() -> None:
    assert parser() is parser()
    assert "program:" in grammar_text()
    text = "op f() {\n" + "  y[t, h] = (s[t, h] - mu[t]) * rsqrt(var[t] + eps) + beta[h]\n" * 30 + "}\n"
    parse_text(text)
    times = []
    for _ in range(5):
        begin = time.process_time()
        parse_text(text)
        times.append(time.process_time() - begin)
    assert in_time(min(times), 0.1)


def test_threads_share_the_parser() -> None:
    from concurrent.futures import ThreadPoolExecutor

    texts = [t for t in SAMPLES.values() for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(parse_text, texts)) == [parse_text(t) for t in texts]


# --- imports -------------------------------------------------------------------------------------------


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.pf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_imports_are_merged_in_order(tmp_path: Path) -> None:
    write(
        tmp_path,
        main='import "a.pf"\nimport "sub/b.pf"\nop main() {}',
        a='import "sub/b.pf"\nop a() {}',
        sub__b='import "c.pf"\nop b() {}',
        sub__c="op c() {}",
    )
    loaded = load_file(tmp_path / "main.pf")
    assert [op.name for op in loaded.ops] == ["c", "b", "a", "main"]
    assert loaded.main.ops[0].name == "main"
    assert [op.name for op in load(str(tmp_path / "main.pf")).ops] == ["c", "b", "a", "main"]
    assert len(load_text('import "a.pf"', folder=tmp_path).ops) == 3


def import_error(tmp_path: Path, name: str = "main") -> DslError:
    with pytest.raises(DslError) as caught:
        load_file(tmp_path / f"{name}.pf")
    return caught.value


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/etc/x.pf", "absolute"),
        ("~/x.pf", "absolute"),
        ("C:/x.pf", "absolute"),
        ("../x.pf", "'..'"),
        ("sub/../x.pf", "'..'"),
        ("sub\\\\x.pf", "'\\'"),
        ("x.txt", "not the name of a .pf file"),
        ("", "not the name of a .pf file"),
        ("gone.pf", "there is no file"),
        ("folder.pf", "is not a file"),
        ("a" * 5000 + ".pf", "cannot read"),
    ],
)
def test_bad_import_paths(tmp_path: Path, path: str, part: str) -> None:
    (tmp_path / "folder.pf").mkdir()
    write(tmp_path, main=f'# first\nimport "{path}"\n')
    error = import_error(tmp_path)
    span = error.diagnostics[0].span
    assert error.code == "PF107" and part in str(error)
    assert span is not None and (span.line, span.column) == (2, 1)


def test_symlinks_may_not_lead_out(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    write(outside, secret="op s() {}")
    write(inside, main='import "link.pf"\n', behind='import "out/secret.pf"', fine='import "near.pf"')
    write(inside, real="op r() {}")
    (inside / "link.pf").symlink_to(outside / "secret.pf")
    (inside / "out").symlink_to(outside)
    (inside / "near.pf").symlink_to(inside / "real.pf")
    (inside / "loop.pf").symlink_to(inside / "loop.pf")
    assert "symbolic link" in str(import_error(inside))
    assert "symbolic link" in str(import_error(inside, "behind"))
    assert [op.name for op in load_file(inside / "fine.pf").ops] == ["r"]
    write(inside, looping='import "loop.pf"')
    assert import_error(inside, "looping").code == "PF107"


def test_import_cycles(tmp_path: Path) -> None:
    write(tmp_path, main='import "a.pf"', a='import "b.pf"', b='\nimport "a.pf"', self='import "self.pf"')
    error = import_error(tmp_path)
    (found,) = error.diagnostics
    assert found.code == "PF112" and found.span is not None and found.span.line == 2
    assert found.span.source.name.endswith("b.pf") and len(found.related) == 1
    assert import_error(tmp_path, "self").code == "PF112"


def test_long_import_chains_end(tmp_path: Path) -> None:
    for i in range(40):
        write(tmp_path, **{f"f{i}": f'import "f{i + 1}.pf"'})
    error = import_error(tmp_path, "f0")
    assert error.code == "PF107" and "too many imports" in str(error)


def test_duplicate_operators_across_files(tmp_path: Path) -> None:
    write(tmp_path, main='import "a.pf"\nop f() {}', a="\n\nop f() {}")
    (found,) = import_error(tmp_path).diagnostics
    assert found.code == "PF108" and found.span is not None and found.span.line == 2
    assert found.related[0][0].line == 3


def test_errors_of_imported_files_are_reported_there(tmp_path: Path) -> None:
    write(tmp_path, main='import "a.pf"\nimport "gone.pf"', a="op f( {}")
    error = import_error(tmp_path)
    assert [d.code for d in error.diagnostics] == ["PF106", "PF107"]
    assert "a.pf:1:8" in str(error)


def test_files(tmp_path: Path) -> None:
    (tmp_path / "x.pf").write_bytes(b"\xef\xbb\xbfop f() {}\r\n")
    assert parse_file(tmp_path / "x.pf").ops[0].name == "f"
    for path in (tmp_path / "gone.pf", tmp_path, Path("nul\0.pf")):
        with pytest.raises(DslError, match="PF107"):
            parse_file(path)
    with pytest.raises(DslError, match="not in a file"):
        load('import "x.pf"\nop f() {}')
