"""Style: the look of the report's pages, light and dark; without a `<` or `&`, so that pages stay well-formed XML."""

from __future__ import annotations

from typing import Final

PAGE: Final = """
:root { color-scheme: light dark; --ink: #1b1f24; --faint: #667080; --line: #dfe3e8; --paper: #ffffff;
  --panel: #f5f7f9; --good: #1a7f37; --bad: #cf222e; --unsure: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --faint: #8d96a0; --line: #2c333b; --paper: #14181d;
  --panel: #1b2026; --good: #3fb950; --bad: #f85149; --unsure: #d29922; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1040px; padding: 24px; background: var(--paper); color: var(--ink);
  font: 14px/1.5 system-ui, sans-serif; }
h1 { font-size: 22px; margin: 0 0 4px; }
h2 { font-size: 17px; margin: 32px 0 8px; }
a { color: inherit; }
code, pre { font: 12px/1.5 ui-monospace, monospace; }
pre { background: var(--panel); padding: 12px; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
.banner { border-left: 8px solid var(--unsure); background: var(--panel); padding: 16px 20px; }
.banner.valid { border-color: var(--good); }
.banner.invalid { border-color: var(--bad); }
.verdict { font-size: 26px; font-weight: 700; color: var(--unsure); }
.valid .verdict, td.valid { color: var(--good); }
.invalid .verdict, td.invalid { color: var(--bad); }
td.unknown { color: var(--unsure); }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; }
th { color: var(--faint); font-weight: 500; white-space: nowrap; }
td.name { white-space: nowrap; }
td.promise { width: 38%; }
td.mark { font-weight: 700; text-align: center; width: 28px; }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; color: var(--faint); width: 110px; }
.faint { color: var(--faint); }
.biography { font-size: 12px; }
.biography .fault td { color: var(--faint); font-style: italic; }
.biography .snapshot td { color: var(--faint); }
.biography .finding td { color: var(--bad); font-weight: 600; }
details { margin: 4px 0; }
summary { cursor: pointer; }
figure { margin: 16px 0; overflow-x: auto; }
svg { max-width: 100%; height: auto; }
ul { margin: 2px 0; padding-left: 18px; }
"""

TIMELINE: Final = """
body { max-width: none; }
.heads { position: sticky; top: 0; background: var(--paper); height: 22px; z-index: 2; }
.heads span { position: absolute; font-weight: 600; white-space: nowrap; }
.field { position: relative; }
.op { position: absolute; border-radius: 3px; font: 10px/14px system-ui, sans-serif; padding: 0 4px; color: #10151a;
  overflow: hidden; white-space: nowrap; border: 1px solid rgba(0, 0, 0, 0.25); }
.op.ok { background: #8ec3f5; }
.op.info { background: #fbc06f; }
.op.fail { background: #f893c2; }
.op.nemesis { background: #d3c1ef; }
.op.dim { opacity: 0.08; }
.clock { position: absolute; left: 0; color: var(--faint); font: 10px/14px ui-monospace, monospace; }
"""
