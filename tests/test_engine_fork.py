"""An engine in a forked child, where most of the parent's threads are gone but their locks are still held."""

from __future__ import annotations

from pathlib import Path

import gguf_maker
from own_process import run


def test_a_child_forked_while_another_thread_holds_the_engine_refuses(tmp_path: Path) -> None:
    """The thread that would give the engine back does not exist in the child."""
    llama = gguf_maker.make(tmp_path / "llama.gguf")
    told = run("""
        import os, signal, threading, warnings
        warnings.simplefilter("ignore")
        from edgespec.config import EngineConfig
        from edgespec.engine import Engine
        from edgespec.errors import ModelError
        engine = Engine.open(sys.argv[1], EngineConfig(n_ctx=256, threads=1))
        session = engine.session()
        begun, cancelled = engine.stream([5, 6, 7]), engine.stream([5, 6, 7])
        held, let_go = threading.Event(), threading.Event()

        def hold():
            with engine._lock:
                held.set()
                let_go.wait()

        thread = threading.Thread(target=hold, daemon=True)
        thread.start()
        held.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            cancelled.cancel()
            uses = {
                "iterate": lambda: list(begun), "cancelled": lambda: list(cancelled),
                "stream": lambda: engine.stream([5]), "session": engine.session,
                "release": lambda: engine.release(session),
            }
            for name, use in uses.items():
                try:
                    use()
                except ModelError as error:
                    print(name, "forked" in str(error))
            begun.close()
            engine.close()
            print("closed", flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        let_go.set()
        thread.join()
        assert list(begun), "the parent goes on"
        cancelled.close()
        engine.close()
    """, llama)  # fmt: skip
    refused = ("iterate", "cancelled", "stream", "session", "release")
    assert told.splitlines() == [*(f"{name} True" for name in refused), "closed"]
