"""The words of ``rallypoint conform`` in English and Chinese, for its table and its record."""

from __future__ import annotations

from collections.abc import Mapping

from rallypoint.cli.conform_child import OURS, UPSTREAM
from rallypoint.cli.conform_run import HARNESS_FAILED, HOLDS, NOT_CHECKED, VIOLATED
from rallypoint.cli.conform_tests import API, ENVIRONMENT, REASONS, TEST_BUG

LANGUAGES = ("en", "zh")

# key: English, Chinese
_WORDS: Mapping[str, tuple[str, str]] = {
    HOLDS: ("holds", "成立"),
    VIOLATED: ("violated", "不成立"),
    NOT_CHECKED: ("not checked", "未检查"),
    HARNESS_FAILED: ("harness failed", "检查工具故障"),
    API: ("API", "API 问题"),
    TEST_BUG: ("test's own bug", "用例自身缺陷"),
    ENVIRONMENT: ("environment", "环境问题"),
    UPSTREAM: ("PyTorch's modules", "PyTorch 的模块"),
    OURS: ("rallypoint's modules", "rallypoint 的模块"),
    "with": ("with torch_npu", "加载 torch_npu"),
    "without": ("without torch_npu", "不加载 torch_npu"),
    "file": ("test file", "用例文件"),
    "title": ("Conformance record of the etcd rendezvous", "etcd rendezvous 一致性验证记录"),
    "environment of the run": ("Environment", "验证环境"),
    "item": ("item", "项目"),
    "value": ("value", "取值"),
    "date": ("date", "日期"),
    "test files": ("Test files", "用例文件"),
    "files told": (
        "PyTorch's own files, read where the user has them; the hash tells which version was run.",
        "PyTorch 自带的用例，取自用户指定的位置；哈希值标明所用版本。",
    ),
    "repaired told": (
        "A repaired file is a copy with the missing argument local_addr, and a leading slash for its prefix: without "
        "the slash PyTorch's store finds no key of its own (defect L-H) and the test fails after 300 s.",
        "“repaired” 为修补后的副本：补上缺少的参数 local_addr，并给 prefix 加上开头的斜杠；"
        "若无斜杠，PyTorch 的 store 找不到自己写入的键（缺陷 L-H），用例会在 300 秒后失败。",
    ),
    "commands": ("Commands", "执行命令"),
    "commands told": (
        "All of it: the first line. One file on one side: the others, from a folder that holds the file.",
        "第一行执行全部用例；其余各行在用例所在目录中执行单个文件。",
    ),
    "summary": ("Summary", "结果汇总"),
    "cells told": ("ok/ran and the verdict.", "通过数/执行数与结论。"),
    "failures": ("What did not pass, and why", "未通过的用例及原因"),
    "none": ("Nothing.", "无。"),
    "differences": ("Differences between the sides", "两侧结果的差异"),
    "each test": ("Each test", "逐条结果"),
    "test": ("test", "用例"),
    "seconds": ("seconds", "用时（秒）"),
    "ok": ("ok", "通过"),
    "failed": ("failed", "失败"),
    "error": ("error", "错误"),
    "skipped": ("skipped", "跳过"),
    "not run": ("not run", "未执行"),
    "conclusion": ("Conclusion", "结论"),
    "all hold": (
        "Everything that was asked holds: {files} files, {ran} test runs, {ok} ok, {bugs} failed by bugs of the tests.",
        "所检查的内容全部成立：{files} 个文件，执行 {ran} 次，通过 {ok} 次，{bugs} 次失败属于用例自身缺陷。",
    ),
    "not all hold": (
        "Not everything holds: {bad} of {all} runs of a file do not. See the reasons above.",
        "并非全部成立：{all} 次文件执行中有 {bad} 次不成立，原因见上文。",
    ),
    "without npu": (
        "torch_npu is not installed: nothing is said about it.",
        "未安装 torch_npu：本记录不对其作任何结论。",
    ),
    "npu same": (
        "Loading torch_npu changes the outcome of no test.",
        "加载 torch_npu 后没有任何用例的结果发生变化。",
    ),
    "npu differs": (
        "Loading torch_npu changes the outcome of tests: see the differences.",
        "加载 torch_npu 后有用例的结果发生变化，见差异部分。",
    ),
    "and more": ("and {count} more", "等另外 {count} 条"),
    "limits": (
        "The rendezvous is the control plane: these tests touch no device, so they say nothing about training on one.",
        "rendezvous 属于控制面：这些用例不涉及设备，因此不能说明在设备上训练的情况。",
    ),
}

_REASONS_ZH = (
    "缺少用例所需的 Python 包",
    "没有客户端：缺少 python-etcd",
    "客户端不合适：装的是另一个 etcd 模块，或 urllib3 2.6.0",
    "缺少可执行文件：PATH 与 TORCHELASTIC_ETCD_BINARY_PATH 中都没有 etcd",
    "没有 v2 API：服务端未提供",
    "端口：无法绑定",
    "没有空间或权限来创建文件和进程",
    "构造 EtcdRendezvousHandler 时没有传入 local_addr，而该参数没有默认值（2.7.1 至 2.10.0 的用例文件；2.11.0 已修正）",
    "用例把 mock 用作另一个 mock 的 spec，Python 3.11 不接受",
    "用例替换的是 datetime.utcnow，而代码调用的是 datetime.now(timezone.utc)",
    "缺陷 R74：该版本的 torch 隐藏了真正的错误",
)
_TRANSLATED = dict(zip((text for _, text, _ in REASONS), _REASONS_ZH, strict=True))


class Words:
    """The words of one language."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._index = LANGUAGES.index(language)

    def __getitem__(self, key: str) -> str:
        return _WORDS[key][self._index]

    def reason(self, text: str) -> str:
        """A known reason in the language; what an exception said is not translated."""
        return _TRANSLATED.get(text, text) if self.language == "zh" else text

    def column(self, side: str, with_npu: bool) -> str:
        return f"{self[side]}, {self['with' if with_npu else 'without']}"
