"""`perfd run`."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from perfd_collectors.model_config import check_options
from perfd_collectors.nccl.plugin_library import DIRECTORY_VARIABLE, NOT_BUILT, plugin_missing, with_plugin

from perfd.capture.kineto import with_wait_at_exit
from perfd.capture.node import DAEMON_VARIABLE, RUN_VARIABLE
from perfd.capture.nsys import Launch, find_nsys, plan_launch
from perfd.config import AgentCaptureConfig, AgentConfig, AggregatorConfig, CollectorConfig, KinetoConfig
from perfd.errors import PerfdError, RecordingError
from perfd.hook import NODE_VARIABLE, SOCKET_VARIABLE
from perfd.model import CaptureTool
from perfd.net import require_free
from perfd.session.job import CommandError, job_name, results_folder
from perfd.session.session_config import load_session, with_rules
from perfd.session.supervisor import HOOK_COLLECTOR, NCCL_COLLECTOR, MonitorSettings, SupervisorOptions
from perfd.session.supervisor import run as run_session

_OTHERWISE = " With --kineto PyTorch's own profiler captures instead."
EXIT_CODES = """\
The exit code is the command's: 128 + n if signal n ended it, 127 if it was not found, 126 if it
cannot be executed, and 2 for a usage or configuration error, in which case nothing was started."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXIT_CODES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--config", metavar="FILE", help="configuration of agent and aggregator (YAML)")
    parser.add_argument(
        "--rules",
        action="append",
        default=[],
        metavar="FILE",
        help="additional rules file; may be repeated",
    )
    parser.add_argument(
        "--job", metavar="NAME", help="job name (default: SLURM_JOB_ID, or the script's name)"
    )
    parser.add_argument("--http", metavar="HOST:PORT", help="address of the page, /metrics and /api/v1")
    parser.add_argument(
        "--out",
        metavar="DIR",
        default="perfd-out",
        help="where the folder of results is made (default: %(default)s)",
    )
    parser.add_argument("--record", metavar="DIR", help="also write a recording to a new directory")
    tracer = parser.add_mutually_exclusive_group()
    tracer.add_argument(
        "--no-nsys", action="store_true", help="do not start the command under nsys; disables Nsight captures"
    )
    tracer.add_argument(
        "--kineto",
        action="store_true",
        help="capture with PyTorch's profiler instead: sets KINETO_USE_DAEMON=1 for the command",
    )
    tracer.add_argument(
        "--jax",
        action="store_true",
        help="capture with JAX's profiler instead: the job must call jax.profiler.start_server(PORT)",
    )
    _add_model(parser)
    add_command(parser)


def _add_model(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("the model", "for MFU, where the job's log does not describe it")
    model.add_argument("--model-config", metavar="FILE", help="its Hugging Face config.json")
    model.add_argument("--sequence-length", type=int, metavar="N", help="tokens of a sequence")
    model.add_argument("--tokens-per-step", type=float, metavar="N", help="tokens of a step, of all ranks")
    model.add_argument(
        "--flops-per-step", type=float, metavar="N", help="FLOPs of a step, forward and backward, of all GPUs"
    )
    model.add_argument(
        "--precision", choices=("bf16", "fp16", "fp8", "fp32", "tf32"), help="data type of matrix products"
    )


def add_command(parser: argparse.ArgumentParser) -> None:
    """Declare the command, after `--`."""
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD...", help="the command to run")


def command_of(args: argparse.Namespace) -> list[str]:
    """The command that the user gave, without the `--` in front of it."""
    words: list[str] = list(args.command)
    return words[1:] if words[:1] == ["--"] else words


def run(args: argparse.Namespace) -> int:
    """Run the command and watch it."""
    command = command_of(args)
    if not command:
        raise PerfdError("There is no command to run; write it after --: perfd run -- python train.py")
    return watch(
        command,
        job=args.job,
        config=args.config,
        rules=[str(Path(file).absolute()) for file in args.rules],
        http=args.http,
        out=Path(args.out),
        recording=Path(args.record) if args.record else None,
        tracer=_tracer(args),
        model=_model_options(args),
    )


def _tracer(args: argparse.Namespace) -> CaptureTool | None:
    if args.kineto or args.jax:
        return CaptureTool.KINETO if args.kineto else CaptureTool.JAX
    return None if args.no_nsys else CaptureTool.NSYS


def _model_options(args: argparse.Namespace) -> Mapping[str, str | float]:
    """Options of the collector that describes the model; raises `ConfigError` if they cannot be used."""
    file = Path(args.model_config).absolute() if args.model_config else None
    given = {
        "file": str(file) if file else None,
        "sequence_length": args.sequence_length,
        "tokens_per_step": args.tokens_per_step,
        "flops_per_step": args.flops_per_step,
        "precision": args.precision,
    }
    options = {name: value for name, value in given.items() if value is not None}
    check_options(options)
    return options


def watch(
    command: list[str],
    *,
    job: str | None,
    config: str | None,
    http: str | None,
    out: Path,
    recording: Path | None,
    tracer: CaptureTool | None,
    rules: Sequence[str] = (),
    model: Mapping[str, str | float] | None = None,
) -> int:
    """Run `command` with a monitor beside it, ready for captures by `tracer`; returns its exit code."""
    if recording is not None and recording.exists() and (not recording.is_dir() or any(recording.iterdir())):
        raise RecordingError(f"{recording} is not empty: a recording needs a new folder.")
    if http is not None:
        # The default port may be another run's; one that was chosen is not replaced silently.
        require_free(http)
    configuration = with_rules(load_session(Path(config) if config else None), rules)
    _check_rules(configuration.aggregator)
    name = job or configuration.agent.job or job_name(command, os.environ)
    launch = _plan(command, name, configuration.agent.capture, allowed=tracer is CaptureTool.NSYS)
    settings = MonitorSettings(
        job=name,
        command=command,
        node=os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        search_path=os.environ.get("PATH"),
        config=str(Path(config).absolute()) if config else None,
        rules=rules,
        http=http,
        results=str(results_folder(out.absolute(), name, time.time_ns())),
        recording=str(recording.absolute()) if recording else None,
        hook_socket=_hook_socket(configuration.agent, os.environ),
        nccl_directory=_nccl_directory(configuration.agent, os.environ),
        run=uuid.uuid4().hex,
        capture_tool=tracer.value if tracer in {CaptureTool.KINETO, CaptureTool.JAX} else None,
        model=model or {},
    )
    if tracer is CaptureTool.KINETO and configuration.agent.capture.enabled:
        _say(f"perfd: {_kineto_note(configuration.agent.capture.kineto, name)}")
    if plugin_missing(os.environ) and _collector(configuration.agent, NCCL_COLLECTOR).enabled is not False:
        _say(f"perfd: {NOT_BUILT}")
    try:
        options = SupervisorOptions(
            command=launch.command,
            launcher=launch.session is not None,
            settings=settings,
            environment=_environment(settings, os.environ),
        )
        return run_session(options, say=_say)
    except CommandError as error:
        _say(f"perfd run: {error}")
        return error.exit_code


def _check_rules(config: AggregatorConfig) -> None:
    """Raise `RulesError` here: once the job runs, a wrong file would only leave it unwatched."""
    if not config.rules.files:
        return
    # Other runs start faster without them.
    from perfd.capture.policy.coordinator import CAPTURE_LABEL  # noqa: PLC0415
    from perfd.rules.files import load_rules, unknown_profiles  # noqa: PLC0415

    rules = load_rules(map(Path, config.rules.files))
    for sentence in unknown_profiles(rules.groups, CAPTURE_LABEL, config.capture_profiles):
        _say(f"perfd: {sentence}")


def _kineto_note(config: KinetoConfig, job: str) -> str:
    """What becomes of captures with Kineto."""
    # Other runs start faster without it.
    from perfd.capture.kineto import answered_by_others  # noqa: PLC0415

    problem = answered_by_others(Path(config.socket_directory) if config.socket_directory else None)
    if problem:
        return f"PyTorch's own profiler cannot capture. {problem}"
    return f"PyTorch's own profiler is ready for captures (perfd capture start {job}, or a rule)."


def _hook_socket(agent: AgentConfig, environment: Mapping[str, str]) -> str | None:
    """Where the job's training loops shall write: a socket of this run alone, unless the user named one."""
    if SOCKET_VARIABLE in environment:
        return None
    configured = _collector(agent, HOOK_COLLECTOR).options.get("socket")
    if configured:
        return str(configured)
    try:
        return str(Path(tempfile.gettempdir(), f"perfd-hook-{os.getuid()}-{os.getpid()}.sock"))
    except FileNotFoundError:
        # All disks for temporary files are full: the command runs all the same.
        return None


def _nccl_directory(agent: AgentConfig, environment: Mapping[str, str]) -> str | None:
    """The directory that plugin and agent share: the user's setting of the plugin, else of the agent."""
    configured = _collector(agent, NCCL_COLLECTOR).options.get("directory")
    directory = environment.get(DIRECTORY_VARIABLE) or configured
    return None if directory is None else str(Path(str(directory)).absolute())


def _collector(agent: AgentConfig, name: str) -> CollectorConfig:
    return agent.collectors.get(name, CollectorConfig())


def _environment(settings: MonitorSettings, environment: Mapping[str, str]) -> dict[str, str]:
    variables = {
        SOCKET_VARIABLE: settings.hook_socket,
        DIRECTORY_VARIABLE: settings.nccl_directory,
        RUN_VARIABLE: settings.run,
    }
    if settings.capture_tool == CaptureTool.KINETO:
        variables[DAEMON_VARIABLE] = "1"
        environment = with_wait_at_exit(environment)
    if settings.hook_socket is not None:
        # The command may be srun or mpirun, which take the environment to other machines.
        variables[NODE_VARIABLE] = socket.gethostname()
    return {
        **with_plugin(environment),
        **{name: value for name, value in variables.items() if value is not None},
    }


def _plan(command: list[str], job: str, config: AgentCaptureConfig, *, allowed: bool) -> Launch:
    """What to start: the command itself, or under nsys so that captures are possible."""
    if not (allowed and config.enabled and config.launch):
        return Launch(command=command, session=None)
    installation = find_nsys(config.nsys_path, os.environ.get("PATH"))
    plan = plan_launch(command, job=job, unique=str(os.getpid()), config=config, installation=installation)
    # Without nsys most users miss nothing; `perfd doctor` reports it.
    if installation is not None:
        _say(f"perfd: {plan.note}{'' if plan.session else _OTHERWISE}")
    return plan


def _say(sentence: str) -> None:
    # Its reader may be gone, or a disk full: the job runs all the same.
    with contextlib.suppress(OSError):
        print(sentence, file=sys.stderr, flush=True)
