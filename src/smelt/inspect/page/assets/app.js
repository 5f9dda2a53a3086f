// The page as a whole: one state, one selection, told to every pane; the address keeps it.
"use strict";
(() => {
  const smelt = window.smelt;
  const { el } = smelt;
  const MOST_FOUND = 40;

  class App {
    constructor(page) {
      this.page = page;
      this.plans = page.codes.map((code) => new smelt.Plan(code));
      this.state = { code: Math.max(0, page.codes.length - 1), stage: 0, tab: "passes", colour: "group", uids: new Set(), steps: [], places: new Map(), line: null };
      if (page.codes.some((code) => code.half === "forward")) this.state.code = page.codes.findIndex((code) => code.half === "forward");
      this.missing();
      this.tabs();
      this.readHash();
      if (!this.plans.length) return this.without();
      this.source = new smelt.SourcePane(this);
      this.details = new smelt.DetailsPane(this);
      this.steps = new smelt.StepsPane(this);
      this.graph = new smelt.GraphPane(this);
      this.bar();
      this.keys();
      this.setCode(this.state.code, true);
      this.legend();
    }

    get plan() {
      return this.plans[this.state.code];
    }

    // A program without a graph: the tabs still say what there is.
    without() {
      this.source = new smelt.SourcePane(this);
      const empty = new smelt.Plan({ nodes: [], stages: [], steps: [], inputs: [], decisions: [], choices: [], kernels: [], buffers: [], saved: [], memory: {}, ran: {}, missing: this.page.missing, arena: 0 });
      this.plans = [empty];
      this.state.code = 0;
      this.source.show(empty);
      document.getElementById("node").append(el("p", { class: "none" }, this.page.missing.join("; ")));
      document.getElementById("bar").hidden = true;
      this.tab(this.state.tab === "passes" ? "report" : this.state.tab);
      this.keys();
    }

    missing() {
      const texts = [...this.page.missing, ...this.page.codes.flatMap((code) => code.missing.map((text) => `${code.title}: ${text}`))];
      const box = document.getElementById("missing");
      if (!texts.length) return;
      box.hidden = false;
      box.append(el("details", {}, el("summary", {}, `${texts.length} thing${texts.length === 1 ? " is" : "s are"} not shown`), el("ul", {}, texts.map((text) => el("li", {}, text)))));
    }

    bar() {
      const codes = document.getElementById("code");
      this.page.codes.forEach((code, index) => codes.append(el("option", { value: index }, code.title)));
      codes.addEventListener("change", () => this.setCode(Number(codes.value)));
      const colour = document.getElementById("colour");
      if (!this.plan.total) colour.querySelector("[value=time]").disabled = true;
      colour.addEventListener("change", () => {
        this.state.colour = colour.value;
        this.graph.redraw();
        this.legend();
      });
      document.getElementById("fit").addEventListener("click", () => this.graph.fitWhole());
      document.getElementById("unfold").addEventListener("click", () => this.graph.foldAll(true));
      document.getElementById("fold").addEventListener("click", () => this.graph.foldAll(false));
      document.getElementById("theme").addEventListener("click", () => this.theme());
      document.getElementById("help").addEventListener("click", () => document.getElementById("keys").showModal());
      this.searching();
    }

    theme() {
      const root = document.documentElement;
      root.dataset.theme = this.isDark() ? "light" : "dark";
      this.known = null;
      this.graph?.redraw();
      this.steps?.show(this.plan);
      this.steps?.light(this.state.steps, false);
    }

    isDark() {
      const { theme } = document.documentElement.dataset;
      return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    }

    // Colours for the canvas, from the style sheet.
    colours() {
      const dark = this.isDark();
      if (this.known?.dark === dark) return this.known;
      const style = getComputedStyle(document.documentElement);
      const take = (name) => style.getPropertyValue(`--${name}`).trim();
      const palette = Array.from({ length: 12 }, (_, index) => `hsl(${(index * 47 + 200) % 360} ${dark ? "38% 30%" : "62% 86%"})`);
      this.known = {
        dark, palette, accent: take("accent"), line: take("line"), edge: take("edge"), box: take("box"), hull: take("hull"), pill: take("pill"), dim: take("dim"),
        ink: take("ink"),
        phase: { forward: palette[0], backward: palette[11], update: palette[5] },
        heat: (share) => `color-mix(in srgb, ${take("hot")} ${Math.round(share * 75)}%, ${take("box")})`,
        how: { kernel: palette[4], fused: palette[4], library: palette[1], dispatcher: palette[9], python: dark ? "#7a2c2c" : "#ffc9c2", view: take("hull"), static: take("hull"), block: palette[7], number: palette[7], move: palette[2], copy: palette[2] },
      };
      return this.known;
    }

    legend() {
      const texts = {
        group: "A colour is a kernel: nodes that share it are computed together. Without one: a library, a view, or known before the call.",
        how: "Green: own kernels; others: libraries, the dispatcher; red: Python.", time: "The redder, the more of the time.",
        bytes: "The redder, the more of the bytes.", flops: "The redder, the more of the operations.", dtype: "A colour is a dtype.",
        phase: "Blue: forward; red: backward; green: the update of the parameters.",
      };
      document.getElementById("legend").textContent = texts[this.state.colour];
    }

    tabs() {
      const root = document.getElementById("tabs");
      smelt.TABS.forEach(([name, title]) => root.append(el("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "panel", "aria-selected": "false", tabindex: -1,
        onclick: () => this.tab(name) }, title)));
      root.addEventListener("keydown", (event) => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!by) return;
        const names = smelt.TABS.map(([name]) => name);
        this.tab(names[(names.indexOf(this.state.tab) + by + names.length) % names.length]);
        document.getElementById(`tab-${this.state.tab}`).focus();
      });
    }

    tab(name) {
      if (!smelt.TABS.some(([known]) => known === name)) name = "passes";
      this.state.tab = name;
      const root = document.getElementById("panel");
      root.replaceChildren();
      root.setAttribute("aria-labelledby", `tab-${name}`);
      for (const [other] of smelt.TABS) {
        const button = document.getElementById(`tab-${other}`);
        button.setAttribute("aria-selected", String(other === name));
        button.tabIndex = other === name ? 0 : -1;
      }
      this.shownTab = smelt.TABS.find(([known]) => known === name)[2](this, root) ?? {};
      this.writeHash();
    }

    setCode(index, isFirst = false) {
      this.state.code = Math.min(Math.max(0, index), this.plans.length - 1);
      const { plan } = this;
      const last = plan.code.stages.length - 1;
      this.state.stage = isFirst && this.state.stage ? Math.min(this.state.stage, last) : last;
      const asked = isFirst ? [...this.state.uids].filter((uid) => plan.records.has(uid)) : [];
      this.state.uids = new Set();
      document.getElementById("code").value = String(this.state.code);
      const phase = document.querySelector("#colour [value=phase]");
      phase.hidden = phase.disabled = !plan.hasPhases;
      if (phase.hidden && this.state.colour === "phase") this.state.colour = document.getElementById("colour").value = "group";
      this.source.show(plan);
      this.steps.show(plan);
      this.graph.show(plan, this.state.stage);
      this.tab(this.state.tab);
      this.select(new Set(asked), "start");
      this.stageName();
    }

    setStage(number) {
      const { stages } = this.plan.code;
      this.state.stage = Math.min(Math.max(0, number), stages.length - 1);
      this.graph.show(this.plan, this.state.stage);
      this.stageName();
      this.select(this.state.uids, "stage");
      this.shownTab.stage?.();
    }

    stageName() {
      const stage = this.plan.code.stages[this.state.stage];
      document.getElementById("stage").textContent = stage ? `${this.state.stage ? "after " : ""}${stage.name}` : "";
    }

    // --- the selection: nodes, and what is like them everywhere

    select(uids, from, line = null) {
      const { plan, state } = this;
      const all = uids.size ? plan.related(uids) : new Set();
      state.uids = all;
      state.steps = plan.steps(all);
      state.line = line;
      state.places = plan.places(all);
      if (line) state.places.set(`${line[0]}:${line[1]}`, line);
      this.source.light(state.places, from !== "source");
      this.steps.light(state.steps, from !== "steps");
      const here = [...all].filter((uid) => plan.at(state.stage)?.byUid.has(uid));
      const shown = from === "stage" ? here : [...uids].filter((uid) => here.includes(uid));
      this.details.show(plan, state.stage, new Set(shown.length ? shown : here.length ? here : all), line);
      if (from !== "graph" && from !== "stage" && here.length && here.length < 400) this.graph.reveal(here);
      this.graph.redraw();
      this.shownTab?.light?.();
      this.writeHash();
    }

    selectLine(source, line) {
      this.select(new Set(this.plan.lines.get(`${source}:${line}`) ?? []), "source", [source, line]);
      const row = this.source.rows.get(`${source}:${line}`);
      if (row) {
        row.closest("details").open = true;
        row.scrollIntoView({ block: "nearest" });
      }
    }

    selectStep(index) {
      this.select(new Set(this.plan.uidsOf[index]), "steps");
    }

    selectBuffer(buffer) {
      const uids = new Set();
      this.plan.code.steps.forEach((step, index) => {
        if (step.writes.includes(buffer.slot)) for (const uid of this.plan.uidsOf[index]) uids.add(uid);
      });
      this.select(uids, "memory");
    }

    // --- search

    find(query) {
      const { plan, state } = this;
      const words = query.toLowerCase().split(/\s+/).filter(Boolean);
      if (!words.length) return [];
      const view = plan.at(state.stage);
      const tests = words.map((word) => {
        const part = word.match(/^time>([\d.]+)%?$/);
        if (part) return (record) => plan.time(record.uid) > (plan.total * Number(part[1])) / 100;
        if (word === "fellback") return (record) => ["python", "dispatcher"].includes(plan.how(record.uid)?.how);
        return (record) => this.haystack(record).includes(word);
      });
      return view.records.filter((record) => tests.every((test) => test(record)));
    }

    haystack(record) {
      record.hay ??= `${record.text} ${record.scope} ${this.plan.phase(record.uid)} ${record.at.map(([source, line]) => `${this.page.sources[source].file}:${line}`).join(" ")}`.toLowerCase();
      return record.hay;
    }

    searching() {
      const input = document.getElementById("search"), list = document.getElementById("found");
      let hits = [], at = -1;
      const close = () => {
        list.hidden = true;
        input.setAttribute("aria-expanded", "false");
        input.removeAttribute("aria-activedescendant");
      };
      const take = (index) => {
        if (!hits[index]) return;
        close();
        this.select(new Set([hits[index].uid]), "search");
      };
      const move = (index) => {
        at = Math.min(Math.max(0, index), list.children.length - 1);
        [...list.children].forEach((row, number) => row.setAttribute("aria-selected", String(number === at)));
        input.setAttribute("aria-activedescendant", `hit-${at}`);
        list.children[at]?.scrollIntoView({ block: "nearest" });
      };
      input.addEventListener("input", () => {
        hits = this.find(input.value);
        at = -1;
        list.replaceChildren(...hits.slice(0, MOST_FOUND).map((record, index) => el("li", { role: "option", id: `hit-${index}`, "aria-selected": "false", onclick: () => take(index) },
          el("code", {}, record.text), record.scope ? el("small", {}, record.scope) : "")));
        if (input.value && !hits.length) list.append(el("li", { role: "option", "aria-disabled": "true", "aria-selected": "false" }, "nothing"));
        list.hidden = !input.value;
        input.setAttribute("aria-expanded", String(!list.hidden));
      });
      input.addEventListener("keydown", (event) => {
        if (event.key === "ArrowDown") move(at + 1);
        else if (event.key === "ArrowUp") move(at - 1);
        else if (event.key === "Enter") take(Math.max(0, at));
        else if (event.key === "Escape") {
          close();
          input.blur();
        } else return;
        event.preventDefault();
        event.stopPropagation();
      });
      input.addEventListener("blur", () => setTimeout(close, 200));
    }

    keys() {
      document.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
        const keys = {
          "/": () => document.getElementById("search").focus(), "0": () => this.graph?.fitWhole(), f: () => this.graph?.fitWhole(),
          E: () => this.graph?.foldAll(true), C: () => this.graph?.foldAll(false), d: () => this.theme(),
          "[": () => this.graph && this.setStage(this.state.stage - 1), "]": () => this.graph && this.setStage(this.state.stage + 1),
          "?": () => document.getElementById("keys").showModal(), Escape: () => this.graph && this.select(new Set(), "keys"),
        };
        if (!keys[event.key]) return;
        event.preventDefault();
        keys[event.key]();
      });
    }

    say(text) {
      document.getElementById("said").textContent = text;
    }

    // --- the address

    writeHash() {
      if (location.protocol === "about:") return; // in a notebook's frame there is no address
      const { code, stage, tab, uids } = this.state;
      const parts = [`code=${code}`, `stage=${stage}`, `tab=${tab}`];
      if (uids.size && uids.size < 40) parts.push(`nodes=${[...uids].join(".")}`);
      history.replaceState(null, "", `#${parts.join("&")}`);
    }

    readHash() {
      const found = new URLSearchParams(location.hash.slice(1));
      if (found.has("code")) this.state.code = Math.min(Number(found.get("code")) || 0, Math.max(0, this.plans.length - 1));
      if (found.has("stage")) this.state.stage = Number(found.get("stage")) || 0;
      if (found.has("tab")) this.state.tab = found.get("tab");
      if (found.get("nodes")) this.state.uids = new Set(found.get("nodes").split(".").map(Number));
    }
  }

  smelt.load().then((page) => {
    const app = new App(page);
    smelt.app = app;
    smelt.state = () => ({
      code: app.state.code, stage: app.state.stage, tab: app.state.tab, uids: [...app.state.uids], steps: app.state.steps, lines: [...app.state.places.keys()],
      boxes: app.graph?.made?.boxes.length ?? 0, frames: app.graph?.frames ?? 0,
    });
    requestAnimationFrame(() => { smelt.ready = performance.now(); });
  }).catch((error) => {
    // A browser that lacks something, or a damaged file: what was found is still there to be read.
    document.getElementById("bar").hidden = document.getElementById("panes").hidden = true;
    const text = new DOMParser().parseFromString(document.querySelector("noscript").textContent, "text/html").body.textContent;
    const box = document.getElementById("missing");
    box.hidden = false;
    box.replaceChildren(smelt.el("p", {}, `Source, graph and kernels cannot be shown here (${error.message}); a current browser shows them. The report as text:`),
      smelt.el("pre", { class: "code report", tabindex: 0 }, text));
    smelt.ready = performance.now();
  });
})();
