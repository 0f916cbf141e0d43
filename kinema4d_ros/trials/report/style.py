"""The style of a report's page: light, dark, printed, and on a phone."""

from __future__ import annotations

__all__ = ["STYLE"]

_LIGHT = """
--paper:#ffffff;--card:#f6f8fa;--ink:#1c2430;--soft:#5b6675;--line:#d8dee6;--accent:#1f6feb;
--good:#1a7f4b;--bad:#c0362c;--good-fill:#dcf3e5;--bad-fill:#fbe1de;--none-fill:#e9edf2;
--c0:#1f6feb;--c1:#d9660b;--c2:#1a8f5a;--c3:#8a4fd3;--c4:#c93a5e;--c5:#0b8793;--c6:#8a6a16;--c7:#5b6675;
"""
_DARK = """
--paper:#10151c;--card:#182029;--ink:#e4e9f0;--soft:#98a4b3;--line:#2d3743;--accent:#62a2ff;
--good:#4fc98a;--bad:#ff8378;--good-fill:#16382a;--bad-fill:#45211f;--none-fill:#26303b;
--c0:#62a2ff;--c1:#ff9a4d;--c2:#4fc98a;--c3:#bb8cff;--c4:#ff7d9b;--c5:#43c5d2;--c6:#d8b34d;--c7:#98a4b3;
"""

STYLE = (
    f":root{{color-scheme:light dark;{_LIGHT}}}"
    f"@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
    f"@media print{{:root{{color-scheme:light;{_LIGHT}}}}}"
    + """
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 20px 80px;overflow-wrap:anywhere}
h1{font-size:1.9rem;line-height:1.2;margin:0 0 6px}
h2{font-size:1.35rem;margin:52px 0 12px;padding-top:14px;border-top:1px solid var(--line)}
h3{font-size:1.02rem;margin:26px 0 8px}
p{margin:8px 0}
.lead,.note{color:var(--soft)}
.note{font-size:.84rem}
nav{display:flex;flex-wrap:wrap;gap:6px 18px;margin:16px 0 22px;font-size:.92rem}
nav a{color:var(--accent);text-decoration:none}
nav a:hover{text-decoration:underline}
.card{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:16px 20px;margin:14px 0}
.card h3{margin-top:0}
.figures{display:flex;flex-wrap:wrap;gap:10px 26px;margin:6px 0 10px}
.figures div{min-width:110px;max-width:180px}
.figures b{display:block;font-size:1.55rem;line-height:1.2;font-variant-numeric:tabular-nums}
.figures span,.figures small{display:block;color:var(--soft);font-size:.8rem}
.bad{color:var(--bad)}.good{color:var(--good)}
.side{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:20px;align-items:start}
figure{margin:10px 0}
figcaption{color:var(--soft);font-size:.86rem;margin-top:6px}
.scroll{overflow-x:auto;margin:10px 0;-webkit-overflow-scrolling:touch}
table{border-collapse:collapse;width:100%;font-size:.86rem;font-variant-numeric:tabular-nums}
th,td{padding:6px 10px;border-bottom:1px solid var(--line);text-align:right;vertical-align:top;white-space:nowrap}
th{color:var(--soft);font-weight:600;vertical-align:bottom}
th.name,td.name{text-align:left;white-space:normal;min-width:96px;max-width:440px;overflow-wrap:break-word}
td small{display:block;color:var(--soft);font-size:.9em}
tr.strong td{font-weight:650;background:var(--card)}
tr.strong td small{font-weight:400}
.matrices{display:flex;flex-wrap:wrap;gap:18px}
.matrix{flex:0 1 300px;min-width:min(100%,260px)}
.matrix table{table-layout:fixed}
.matrix th,.matrix td{text-align:center;white-space:normal;padding:6px 4px}
.matrix th[scope=row]{text-align:left}
.matrix td{font-size:1.05rem;font-weight:600}
.hit{background:var(--good-fill)}.miss{background:var(--bad-fill)}.open{background:var(--none-fill)}
svg.plot{display:block;width:100%;max-width:520px;height:auto;font:13px system-ui,-apple-system,"Segoe UI",sans-serif}
svg .label{fill:var(--ink)}svg .strong{fill:var(--ink);font-weight:650}svg .faint{fill:var(--soft);font-size:12px}
svg .grid{stroke:var(--line);stroke-width:1}svg .axis{stroke:var(--soft);stroke-width:1.4}
svg .identity{stroke:var(--soft);stroke-width:1.4;stroke-dasharray:3 4}
svg .whisker{stroke:currentColor;stroke-width:2.2;stroke-linecap:round}svg .whisker.thin{stroke-width:1.2;opacity:.45}
svg g circle,svg g polygon,svg.key circle,svg.key polygon{fill:currentColor;stroke:currentColor}
svg .hollow,svg g .hollow,svg.key .hollow{fill:var(--paper);stroke-width:1.8}
svg.key{vertical-align:-3px;margin-right:5px}
"""
    + "".join(f".c{i}{{color:var(--c{i})}}" for i in range(8))
    + """
.total{color:var(--ink)}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:.86rem;margin:4px 0 0;padding:0;list-style:none}
.strip{margin:18px 0 26px}
.strip img{display:block;width:100%;height:auto;border-radius:8px;border:1px solid var(--line)}
.strip code{font-weight:650}
code{font-family:ui-monospace,SFMono-Regular,Menlo,monospace;font-size:.92em}
@media (max-width:600px){main{padding:18px 14px 60px}h1{font-size:1.5rem}th,td{padding:5px 6px}
th.name,td.name{min-width:86px;overflow-wrap:anywhere}table{font-size:.8rem}}
@media print{
body{font-size:10.5pt}main{max-width:none;padding:0}nav{display:none}
.scroll{overflow:visible}table{font-size:7.5pt}th,td{padding:2px 4px}th{white-space:normal}
.side{grid-template-columns:1fr 1fr}th.name,td.name{min-width:50px;overflow-wrap:anywhere}
figure,.card,.matrix,tr,.strip{break-inside:avoid}h2,h3{break-after:avoid}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
}
"""
)
