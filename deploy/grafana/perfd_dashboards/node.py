"""One node: its GPUs, its host, its network, and the agent on it."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row

from perfd_dashboards.panels import (
    BYTES,
    COUNT,
    PERCENT,
    RATE,
    SECONDS,
    board,
    choice,
    graph,
    heat,
    number,
    page_link,
    q,
)

_NODE = 'node="$node"'
_LIMITS = ("sw_power", "sync_boost", "sw_thermal", "hw_thermal", "hw_power_brake")


def dashboard() -> Dashboard:
    """The dashboard `perfd-node`."""
    node = board("node", "perfd: node", "The hardware under the jobs, as the agent on the node reads it.")
    node = node.with_variable(choice("node", "Node", "label_values(perfd_agent_up, node)"))
    node = node.link(page_link("Page", "/agents"))
    for panels in (_numbers, _gpus, _host, _network, _agent):
        node = panels(node)
    return node


def _numbers(node: Dashboard) -> Dashboard:
    return (
        node.with_panel(
            number("Agent", f"perfd_agent_up{{{_NODE}}}", unit="bool_yes_no", help_text="Its stream is open.")
        )
        .with_panel(
            number(
                "GPUs",
                f"count(perfd_gpu_memory_total_bytes{{{_NODE}}})",
                unit=COUNT,
                help_text="As NVML reports them.",
            )
        )
        .with_panel(
            number(
                "Ranks",
                f"perfd_node_rank_processes{{{_NODE}}}",
                unit=COUNT,
                help_text="Processes of jobs found here.",
            )
        )
        .with_panel(
            number(
                "Hardware errors",
                f"sum(perfd_hardware_errors_total{{{_NODE}}})",
                unit=COUNT,
                bad_from=1,
                none="0",
                help_text="XID events, ECC errors and lost GPUs.",
            )
        )
        .with_panel(
            number(
                "Uncorrected ECC errors",
                f"sum(perfd_gpu_ecc_uncorrected_errors_total{{{_NODE}}})",
                unit=COUNT,
                bad_from=1,
                none="-",
                help_text="Since the driver was loaded.",
            )
        )
        .with_panel(
            number(
                "OOM kills",
                f"perfd_node_oom_kills_total{{{_NODE}}}",
                unit=COUNT,
                none="-",
                help_text="Processes that the kernel killed for memory, since boot.",
            )
        )
    )


def _gpus(node: Dashboard) -> Dashboard:
    # A metric for each reason: the reason's name is in the metric's.
    limited = (
        q(
            f"rate(perfd_gpu_clocks_limited_{name}_seconds_total{{{_NODE}}}[$__rate_interval])",
            f"GPU {{{{gpu}}}}: {name}",
        )
        for name in _LIMITS
    )
    return (
        node.with_row(Row("GPUs"))
        .with_panel(
            heat(
                "SM active",
                q(f"perfd_gpu_sm_active_ratio{{{_NODE}}}", "{{gpu}}"),
                unit=PERCENT,
                help_text="Share of streaming multiprocessors with a warp resident.",
            )
        )
        .with_panel(
            graph(
                "Memory bandwidth",
                q(f"perfd_gpu_dram_active_ratio{{{_NODE}}}", "GPU {{gpu}}"),
                unit=PERCENT,
                most=1.0,
                help_text="Device memory traffic against the most that the memory can carry.",
            )
        )
        .with_panel(
            graph(
                "Power",
                q(f"perfd_gpu_power_watts{{{_NODE}}}", "GPU {{gpu}}"),
                q(f"max(perfd_gpu_power_limit_watts{{{_NODE}}})", "limit"),
                unit="watt",
                help_text="Board power, and the limit that is in force.",
            )
        )
        .with_panel(
            graph(
                "Temperature",
                q(f"perfd_gpu_temperature_celsius{{{_NODE}}}", "GPU {{gpu}}"),
                q(f"perfd_gpu_memory_temperature_celsius{{{_NODE}}}", "memory of GPU {{gpu}}"),
                unit="celsius",
                help_text="Clocks fall when it is too high: see the next panel.",
            )
        )
        .with_panel(
            graph(
                "Clocks held down",
                *limited,
                unit=PERCENT,
                help_text="Share of the time, by reason.",
            )
        )
        .with_panel(
            graph(
                "PCIe",
                q(f"perfd_gpu_pcie_tx_bytes_per_second{{{_NODE}}}", "GPU {{gpu}} sends"),
                q(f"perfd_gpu_pcie_rx_bytes_per_second{{{_NODE}}}", "GPU {{gpu}} receives"),
                unit=RATE,
                help_text="Between the GPUs and the rest of the node.",
            )
        )
    )


def _host(node: Dashboard) -> Dashboard:
    rate = f"{{{_NODE}}}[$__rate_interval]"
    return (
        node.with_row(Row("Host"))
        .with_panel(
            graph(
                "CPU",
                q(f"perfd_node_cpu_user_ratio{{{_NODE}}}", "programs"),
                q(f"perfd_node_cpu_system_ratio{{{_NODE}}}", "kernel"),
                q(f"perfd_node_cpu_iowait_ratio{{{_NODE}}}", "waiting for disks"),
                q(f"perfd_node_cpu_steal_ratio{{{_NODE}}}", "given to others"),
                unit=PERCENT,
                stacked=True,
                most=1.0,
                help_text="Share of the time of all CPUs.",
            )
        )
        .with_panel(
            graph(
                "Memory",
                q(
                    f"perfd_node_memory_total_bytes{{{_NODE}}}"
                    f" - perfd_node_memory_available_bytes{{{_NODE}}}",
                    "in use",
                ),
                q(f"perfd_node_memory_shared_bytes{{{_NODE}}}", "shared: data loaders keep batches there"),
                q(f"perfd_node_memory_total_bytes{{{_NODE}}}", "all"),
                unit=BYTES,
                help_text="Of the host.",
            )
        )
        .with_panel(
            graph(
                "Pressure",
                q(f"rate(perfd_node_pressure_cpu_some_seconds_total{rate})", "CPU"),
                q(f"rate(perfd_node_pressure_memory_some_seconds_total{rate})", "memory"),
                q(f"rate(perfd_node_pressure_io_some_seconds_total{rate})", "disks"),
                unit=PERCENT,
                help_text="Share of the time in which at least one task waited for it.",
            )
        )
        .with_panel(
            graph(
                "Disks",
                q(f"rate(perfd_disk_read_bytes_total{rate})", "{{device}} read"),
                q(f"rate(perfd_disk_write_bytes_total{rate})", "{{device}} written"),
                unit=RATE,
                help_text="Checkpoints and input.",
            )
        )
    )


def _network(node: Dashboard) -> Dashboard:
    rate = f"{{{_NODE}}}[$__rate_interval]"
    return (
        node.with_row(Row("Network"))
        .with_panel(
            graph(
                "Traffic",
                q(f"rate(perfd_nic_tx_bytes_total{rate})", "{{device}} sends"),
                q(f"rate(perfd_nic_rx_bytes_total{rate})", "{{device}} receives"),
                unit=RATE,
                help_text="Ethernet and InfiniBand.",
            )
        )
        .with_panel(
            graph(
                "Trouble",
                q(f"rate(perfd_nic_rx_errors_total{rate})", "{{device}} errors"),
                q(f"rate(perfd_nic_rx_dropped_packets_total{rate})", "{{device}} dropped"),
                q(f"rate(perfd_nic_out_of_sequence_packets_total{rate})", "{{device}} out of order"),
                q(
                    f"rate(perfd_nic_congestion_notifications_handled_packets_total{rate})",
                    "{{device}} slowed down",
                ),
                unit="pps",
                help_text="What makes a network slower than its links.",
            )
        )
    )


def _agent(node: Dashboard) -> Dashboard:
    return (
        node.with_row(Row("The agent itself"))
        .with_panel(
            graph(
                "Collectors",
                q(f"perfd_collector_duration_seconds{{{_NODE}}}", "{{collector}}"),
                unit=SECONDS,
                help_text="Time that the last run of each took.",
            )
        )
        .with_panel(
            graph(
                "Cost",
                q(f"rate(perfd_node_agent_cpu_seconds_total{{{_NODE}}}[$__rate_interval])", "CPUs"),
                unit=PERCENT,
                help_text="CPU time of the agent, 100% is one CPU.",
            )
        )
    )
