"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const palette = ["#8c8c8c", "#d1495b", "#2f6fb0", "#e08e1b", "#3a9b5c", "#8e5bb5", "#17a2a6", "#c2529b", "#7a8f2a", "#9c6b4a", "#5567d8", "#b0a018"];
  // The first colour is a quiet one, for the control of a comparison; a run by itself takes a clear one.
  const shift = data.runs.length === 1 ? 2 : 0;
  const colour = scheme => palette[(scheme + shift) % palette.length];
  document.querySelectorAll("[data-scheme]").forEach(dot => { dot.style.background = colour(+dot.dataset.scheme); });

  // Numbers that JSON cannot say come as texts; a chart leaves them out and marks where they begin.
  const number = value => typeof value === "number" ? value : null;
  const hidden = new Set();
  const charts = [];
  const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const tick = value => {
    const size = Math.abs(value);
    if (value === 0) return "0";
    return size >= 1e4 || size < 1e-2 ? value.toExponential(0).replace("e+", "e") : String(+value.toPrecision(3));
  };

  function draw(id, xs, series, options) {
    const place = document.getElementById(id);
    place.textContent = "";
    const shown = series.filter(line => !hidden.has(line.scheme));
    const values = shown.flatMap(line => line.ys).filter(y => y !== null && (!options.log || y > 0));
    if (!values.length) {
      place.innerHTML = '<p class="empty">no finite data</p>';
      return;
    }
    // Not Math.min(...values): a long run has more values than a call may have arguments.
    let low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
    if (options.also) { low = Math.min(low, ...options.also.map(line => line.at)); high = Math.max(high, ...options.also.map(line => line.at)); }
    if (options.range) [low, high] = options.range;
    else if (options.log) { low = Math.max(low, high * 1e-14) / 1.3; high *= 1.3; if (high / low < 4) { low /= 1.5; high *= 1.5; } }
    else { const room = (high - low || Math.abs(high) || 1) * 0.05; low -= room; high += room; }
    const axis = {
      stroke: style("--muted"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line"), width: 1 },
      font: "12px system-ui, sans-serif", values: (_, splits) => splits.map(value => value === null ? "" : tick(value)),
    };
    // One line a power of ten, or every few of them: the minor lines of a log axis say nothing here.
    const decades = (_, __, min, max) => {
      const first = Math.ceil(Math.log10(min)), last = Math.floor(Math.log10(max));
      const every = Math.max(1, Math.ceil((last - first) / 5));
      const powers = [];
      for (let power = first; power <= last; power += every) powers.push(+`1e${power}`);
      if (powers.length > 1) return powers;
      return [1, 2, 5].flatMap(digit => [first - 1, first, first + 1].map(power => +`${digit}e${power}`)).filter(y => y >= min && y <= max).sort((a, b) => a - b);
    };
    const chart = new uPlot({
      width: place.clientWidth || 600, height: options.height, cursor: { points: { size: 6 }, drag: { x: false, y: false } },
      scales: { x: { time: false }, y: { distr: options.log ? 3 : 1, range: [low, high] } },
      axes: [{ ...axis, label: options.xLabel, labelSize: 18, size: 34, labelFont: "12px system-ui, sans-serif" }, { ...axis, size: 58, ...(options.log ? { splits: decades, filter: (_, splits) => splits } : {}) }],
      series: [{}, ...shown.map(line => ({
        label: line.label, stroke: colour(line.scheme), width: 2, dash: line.dash, spanGaps: true, points: { show: line.ys.length < 3 || options.points, size: 5 },
      }))],
      hooks: {
        draw: [u => {
          const { ctx, bbox } = u;
          ctx.save();
          for (const line of options.also || []) {
            const y = u.valToPos(line.at, "y", true);
            if (y < bbox.top || y > bbox.top + bbox.height) continue;
            ctx.strokeStyle = style("--muted"); ctx.setLineDash([6, 5]); ctx.lineWidth = 1;
            ctx.beginPath(); ctx.moveTo(bbox.left, y); ctx.lineTo(bbox.left + bbox.width, y); ctx.stroke();
            ctx.fillStyle = style("--muted"); ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
            ctx.textAlign = "right"; ctx.fillText(line.label, bbox.left + bbox.width - 6, y - 5 * devicePixelRatio);
          }
          // Where a line stops being made of numbers, a cross on the upper edge.
          ctx.setLineDash([]);
          for (const line of shown) {
            const at = line.broken;
            if (at === null || at === undefined) continue;
            const x = u.valToPos(at, "x", true), y = bbox.top + 8 * devicePixelRatio, r = 5 * devicePixelRatio;
            ctx.strokeStyle = colour(line.scheme); ctx.lineWidth = 2 * devicePixelRatio;
            ctx.beginPath(); ctx.moveTo(x - r, y - r); ctx.lineTo(x + r, y + r); ctx.moveTo(x - r, y + r); ctx.lineTo(x + r, y - r); ctx.stroke();
          }
          ctx.restore();
        }],
        setCursor: [u => showTip(u, place, shown, options.xLabel)],
      },
    }, [xs, ...shown.map(line => options.log ? line.ys.map(y => y !== null && y > 0 ? y : null) : line.ys)], place);
    charts.push(chart);
  }

  function showTip(u, place, shown, xLabel) {
    let tip = place.querySelector(".tip");
    if (!tip) {
      tip = document.createElement("div");
      tip.className = "tip";
      tip.style.cssText = "position:absolute;pointer-events:none;z-index:9;background:var(--soft);border:1px solid var(--line);border-radius:6px;padding:5px 9px;font-size:12px;white-space:nowrap";
      place.style.position = "relative";
      place.append(tip);
    }
    const { idx, left, top } = u.cursor;
    if (idx === null || idx === undefined || left < 0) { tip.style.display = "none"; return; }
    const rows = shown.map((line, i) => [line, u.data[i + 1][idx]]).filter(([, y]) => y !== null && y !== undefined).sort((a, b) => b[1] - a[1]);
    tip.style.display = rows.length ? "block" : "none";
    tip.replaceChildren(Object.assign(document.createElement("div"), { textContent: `${xLabel} ${u.data[0][idx]}` }), ...rows.map(([line, y]) => {
      const row = document.createElement("div");
      row.style.color = colour(line.scheme);
      row.textContent = `${line.label}  ${Math.abs(y) >= 1e4 || Math.abs(y) < 1e-3 ? y.toExponential(2) : y.toFixed(4)}`;
      return row;
    }));
    const width = tip.offsetWidth;
    tip.style.left = `${left + 70 + width > place.clientWidth ? left + 40 - width : left + 74}px`;
    tip.style.top = `${Math.max(0, top - 20)}px`;
  }

  function lossChart() {
    const kind = document.querySelector("input[name=loss]:checked").value;
    const steps = [...new Set(data.runs.flatMap(run => run[kind].map(([step]) => step)))].sort((a, b) => a - b);
    // A run that explodes would press all others flat: what is beyond twice the first losses is off the chart,
    // and marked as where the line leaves it.
    const firsts = data.runs.map(run => number((run[kind][0] || [])[1])).filter(loss => loss !== null && loss < 1e3);
    const cap = 2 * firsts.reduce((a, b) => Math.max(a, b), data.unigram);
    const within = loss => number(loss) !== null && loss <= cap ? loss : null;
    const series = data.runs.map(run => {
      const byStep = new Map(run[kind]);
      const ys = steps.map(step => byStep.has(step) ? within(byStep.get(step)) : null);
      const broken = run[kind].find(([, loss]) => within(loss) === null);
      return { label: run.label, scheme: run.scheme, ys, broken: broken ? broken[0] : null };
    });
    const also = [{ at: data.unigram, label: "unigram entropy" }];
    if (data.floor !== null) also.push({ at: data.floor, label: "floor" });
    draw("loss", steps, series, { height: 340, xLabel: "step", also, points: kind === "validation" });
  }

  const slider = document.getElementById("step");
  const looks = [...new Set(data.runs.flatMap(run => run.looks.map(look => look.step)))].sort((a, b) => a - b);
  slider.max = looks.length - 1;
  slider.value = looks.length - 1;

  function profiles() {
    const step = looks[+slider.value];
    document.getElementById("step-value").textContent = step;
    slider.setAttribute("aria-valuetext", `after step ${step}`);
    const xs = Array.from({ length: data.blocks + 1 }, (_, block) => block);
    for (const [id, options] of [
      ["rms", { log: true }], ["cosine", { range: [-0.15, 1.03] }], ["gradient", { log: true }], ["parameter_gradient", { log: true }],
      ["attention_share", {}], ["ffn_share", {}],
    ]) {
      const series = data.runs.map(run => {
        const look = run.looks.find(look => look.step === step);
        const values = look ? look[id] : [];
        const ys = xs.map(block => values[block] === undefined ? null : number(values[block]));
        return { label: run.label, scheme: run.scheme, ys, broken: null };
      });
      draw(id, xs, series, { height: 230, xLabel: "block", ...options });
    }
  }

  function legend() {
    const place = document.getElementById("legend");
    if (data.schemes.length < 2) return;
    data.schemes.forEach((label, scheme) => {
      const button = document.createElement("button");
      button.innerHTML = '<span class="dot"></span>';
      button.firstChild.style.background = colour(scheme);
      button.append(label);
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => {
        if (hidden.has(scheme)) hidden.delete(scheme); else hidden.add(scheme);
        button.setAttribute("aria-pressed", String(!hidden.has(scheme)));
        all();
      });
      place.append(button);
    });
  }

  function all() {
    charts.splice(0).forEach(chart => chart.destroy());
    lossChart();
    profiles();
  }

  document.querySelectorAll("input[name=loss]").forEach(input => input.addEventListener("change", all));
  slider.addEventListener("input", all);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  let timer;
  addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(all, 150); });
  legend();
  all();
})();
