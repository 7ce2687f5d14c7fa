"""Made-up nodes for benchmarks: texts of work at a screen, in English and Chinese, the same for the same seed.

Words are as uneven as real ones: a few are in a tenth of all nodes, most are rare (Zipf). English words are compounds
of real stems, so that they share letter groups like real words. Each node has a subject of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.random import Generator


def _listed(words: str) -> list[str]:
    return words.split()


BEGIN = datetime(2026, 1, 1, 8, 0, tzinfo=UTC)
APPS = ("Visual Studio Code", "Google Chrome", "Terminal", "Slack", "Microsoft Excel", "微信", "飞书", "Outlook")
COMMON = _listed(
    "review report meeting update error test database invoice project login page server file report screen"
    " customer order search table email design branch deploy build cache queue worker budget schedule"
)
COMMON_CHINESE = _listed("数据库 会议 报告 测试 页面 错误 项目 更新 客户 设计 订单 用户 登录")
_BEFORE = ("", "re", "un", "pre", "over", "sub", "inter", "multi", "auto", "micro", "cross")
_STEMS = _listed(
    "connect invoice account deploy request render convert index market travel garden kitchen energy signal paper"
    " letter window camera finance contract tenant visit graph vector merge schema storage backup cluster network"
    " packet socket thread memory budget forecast quarter payroll holiday flight hotel ticket museum concert"
    " recipe pasta tomato bicycle engine battery sensor robot planet orbit protein enzyme patient clinic therapy"
    " lecture student grammar novel chapter poem sculpt paint colour font layout banner campaign audience metric"
    " funnel retain churn price tax audit ledger credit debit loan insure claim policy court statute permit zone"
    " bridge tunnel harbor cargo freight"
)
_AFTER = ("", "s", "ing", "ed", "er", "ment", "ation", "able", "ly", "board")
_CHINESE = _listed(
    "数据 连接 系统 服务 用户 报告 会议 项目 测试 部署 缓存 队列 网络 安全 日志 监控 接口 文档 预算 合同 发票"
    " 客户 供应 物流 库存 订单 支付 退款 营销 设计 图片 视频 音乐 旅行 酒店 机票 餐厅 健康 医院 课程 论文 实验"
    " 算法 模型 训练 向量 搜索 排序 推荐 广告 增长 留存 分析 统计 财务 税务 审计 招聘 面试 培训 绩效 假期 邮件"
    " 通知 权限 登录 注册 版本 分支 合并 冲突 编译"
)


@dataclass(frozen=True)
class MadeUp:
    """The text of a node and of its frame."""

    title: str
    summary: str
    keywords: tuple[str, ...]
    app: str
    window: str
    screen: str
    at: datetime


def nodes(count: int, seed: int = 7) -> Iterator[MadeUp]:
    """Yield a node for each minute."""
    random = np.random.default_rng(seed)
    words = Words(random)
    for number in range(count):
        chinese = random.random() < 0.4
        subject = words.some(3, chinese=chinese)
        app = APPS[min(int(random.exponential(2)), len(APPS) - 1)]
        common = words.common(2, chinese=chinese)
        title = _joined([*subject[:2], common[0]], chinese=chinese)
        summary = _joined([*words.some(14, chinese=chinese), *subject, *common], chinese=chinese)
        screen = _joined([*subject, *words.some(60, chinese=chinese), *words.common(6, chinese=chinese)], chinese=False)
        yield MadeUp(
            title,
            f"{summary} PEN-{number}",
            (*subject, common[1]),
            app,
            f"{title} - {app}",
            screen,
            BEGIN + timedelta(minutes=number),
        )


def queries(count: int, seed: int = 8) -> list[str]:
    """Return queries of one to five words: common, rare, or mixed words, or the name of one node."""
    random = np.random.default_rng(seed)
    words = Words(random)
    texts = []
    for number in range(count):
        chinese = number % 5 in {1, 3}
        kind = number % 7
        if kind == 0:
            terms: Sequence[str] = words.common(1 + number % 3, chinese=chinese)
        elif kind == 1:
            terms = [f"PEN-{int(random.integers(0, 1000))}", *words.common(1, chinese=chinese)]
        elif kind in {2, 3}:
            terms = [*words.common(1, chinese=chinese), *words.some(1 + number % 2, chinese=chinese)]
        else:
            terms = words.some(1 + number % 5, chinese=chinese)
        texts.append(" ".join(terms))
    return texts


class Words:
    """Draws words. The n-th most frequent word is n times as rare as the first."""

    def __init__(self, random: Generator) -> None:
        self._random = random
        # The order of frequency is the same for every seed, so that queries and nodes share their words.
        order = np.random.default_rng(1)
        english = [f"{before}{stem}{after}" for before in _BEFORE for stem in _STEMS for after in _AFTER]
        chinese = [first + second for first in _CHINESE for second in _CHINESE if first != second]
        self._words = {False: list(order.permutation(english)), True: list(order.permutation(chinese))}
        self._shares = {which: _zipf(len(words)) for which, words in self._words.items()}

    def some(self, count: int, *, chinese: bool) -> list[str]:
        places = np.searchsorted(self._shares[chinese], self._random.random(count))
        return [str(self._words[chinese][place]) for place in places]

    def common(self, count: int, *, chinese: bool) -> list[str]:
        words = COMMON_CHINESE if chinese else COMMON
        return [words[int(place)] for place in self._random.integers(0, len(words), count)]


def _zipf(count: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Return cumulative shares of words. The top is flat, since `COMMON` has the words of every node."""
    shares = 1 / (np.arange(count) + 20)
    return np.asarray(np.cumsum(shares / shares.sum()))


def _joined(words: Sequence[str], *, chinese: bool) -> str:
    return ("" if chinese else " ").join(words)
