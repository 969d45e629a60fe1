// Draws the blocks that docs/conf.py makes of ```mermaid.
mermaid.initialize({ startOnLoad: true, theme: "neutral", securityLevel: "strict" });
