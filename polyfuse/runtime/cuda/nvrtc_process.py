"""NVIDIA's run-time compiler NVRTC, called in a process of its own: ``python nvrtc_process.py <libnvrtc>``.

Reads one line of JSON for each compilation, ``{"source": ..., "options": [...]}``, and answers with one line:
``status`` and ``log`` of NVRTC, its ``version``, and if it went well ``cubin`` (base64) and ``ptx``; or
``error`` where the library cannot be used.  Imports nothing of polyfuse, so that it starts in 40 ms.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import sys
from typing import Any

FILE = "kernel.cu"


def compile_source(library: ctypes.CDLL, source: str, options: list[str]) -> dict[str, Any]:
    """One compilation. Whatever is wrong with the source is in `log`."""
    program = ctypes.c_void_p()
    status = library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), FILE.encode(), 0, None, None)
    if status:
        return {"error": f"nvrtcCreateProgram: status {status}"}
    words = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    status = library.nvrtcCompileProgram(program, len(options), words)
    log = _text(library, program, "nvrtcGetProgramLog")
    answer = {"status": status, "log": log, "version": _version(library)}
    if status == 0:
        answer["cubin"] = base64.b64encode(_data(library, program, "nvrtcGetCUBIN")).decode()
        answer["ptx"] = _text(library, program, "nvrtcGetPTX")
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return answer


def _data(library: ctypes.CDLL, program: ctypes.c_void_p, getter: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(library, getter + "Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(library, getter)(program, buffer)
    return buffer.raw


def _text(library: ctypes.CDLL, program: ctypes.c_void_p, getter: str) -> str:
    return _data(library, program, getter).rstrip(b"\0").decode("utf-8", "replace")


def _version(library: ctypes.CDLL) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def serve(path: str) -> None:
    """Answer lines until the caller closes the pipe. Nothing else may write to it."""
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        print(json.dumps({"error": str(error)}), file=out, flush=True)
        return
    for line in sys.stdin:
        request = json.loads(line)
        print(
            json.dumps(compile_source(library, request["source"], request["options"])), file=out, flush=True
        )


if __name__ == "__main__":
    serve(sys.argv[1])
