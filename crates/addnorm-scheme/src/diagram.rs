//! The algebra of pictures: one block as an SVG diagram, read from the bottom up.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write;

use crate::algebra::{Algebra, interpret_section};
use crate::plan::{Mix, Place, Section, Slot, Step};
use crate::prose::scalar_as_text;
use crate::scalar::Scalar;
use crate::scheme::Sublayer;

const ROW: f64 = 44.0;
const BOX_WIDTH: f64 = 84.0;
const BOX_HEIGHT: f64 = 26.0;
const COLUMN: f64 = 150.0;
const MARGIN: f64 = 70.0;
/// How far beside a column a line runs that must pass a box in it.
const LANE: f64 = 56.0;

/// Draws one block. Colours come from the CSS variables `--diagram-ink`, `--diagram-norm`,
/// `--diagram-attention` and `--diagram-ffn`, with defaults for a page that sets none.
pub fn diagram(section: &Section, streams: &[String], title: &str) -> String {
    let columns: BTreeMap<Slot, usize> = section
        .steps
        .iter()
        .filter_map(|step| match step {
            Step::Assign { name, is_stream: true, input, .. } => {
                streams.iter().position(|stream| stream == name).map(|column| (*input, column))
            }
            _ => None,
        })
        .collect();
    let mut drawer = Drawer { columns, branch: streams.len(), nodes: Vec::new(), edges: Vec::new(), row: 0 };
    let mut inputs: Vec<Wire> =
        streams.iter().enumerate().map(|(at, name)| Wire::plain(drawer.node(Shape::Port, name, at, 0))).collect();
    if section.inputs > streams.len() {
        // One port stands for all that earlier blocks have given.
        let earlier = Wire::plain(drawer.node(Shape::Port, "earlier", streams.len(), 0));
        inputs.resize(section.inputs, earlier);
    }
    let Ok(outputs) = interpret_section(section, &mut drawer, inputs);
    let top = drawer.row + 1;
    for (at, (name, output)) in streams.iter().zip(outputs).enumerate() {
        let node = drawer.node(Shape::Port, name, at, top);
        drawer.edge(&output, node, String::new(), false);
    }
    drawer.svg(title)
}

#[derive(Clone, Copy, PartialEq)]
enum Shape {
    Port,
    Sum,
    Norm,
    Attention,
    FeedForward,
}

struct Node {
    shape: Shape,
    label: String,
    column: usize,
    row: usize,
}

struct Edge {
    from: usize,
    to: usize,
    label: String,
    stopped: bool,
}

/// A value on its way: the node it comes from and the factor it has picked up since.
#[derive(Clone)]
struct Wire {
    node: usize,
    factor: String,
}

impl Wire {
    fn plain(node: usize) -> Self {
        Wire { node, factor: String::new() }
    }
}

struct Drawer {
    /// The stream whose new value a slot becomes.
    columns: BTreeMap<Slot, usize>,
    /// The column of everything else.
    branch: usize,
    nodes: Vec<Node>,
    edges: Vec<Edge>,
    row: usize,
}

impl Drawer {
    fn node(&mut self, shape: Shape, label: &str, column: usize, row: usize) -> usize {
        self.nodes.push(Node { shape, label: label.to_string(), column, row });
        self.nodes.len() - 1
    }

    fn next_node(&mut self, shape: Shape, label: &str, column: usize) -> usize {
        self.row += 1;
        let row = self.row;
        self.node(shape, label, column, row)
    }

    fn edge(&mut self, from: &Wire, to: usize, factor: String, stopped: bool) {
        let label = [from.factor.as_str(), factor.as_str()]
            .iter()
            .filter(|part| !part.is_empty())
            .copied()
            .collect::<Vec<_>>()
            .join(" · ");
        self.edges.push(Edge { from: from.node, to, label, stopped });
    }
}

fn factor(coefficient: &Scalar) -> String {
    if coefficient.is_one() { String::new() } else { format!("×{}", scalar_as_text(coefficient)) }
}

impl Algebra for Drawer {
    type Value = Wire;
    type Error = Infallible;

    fn mix(&mut self, _: Place, mix: &Mix, inputs: &[Wire]) -> Result<Wire, Infallible> {
        let column = self.columns.get(&mix.output).copied().unwrap_or(self.branch);
        let factors: Vec<String> = mix.terms.iter().map(|term| factor(&term.coefficient.symbol)).collect();
        let wire = if let ([only], [term]) = (inputs, mix.terms.as_slice()) {
            let label = factor(&term.coefficient.symbol);
            if mix.norm.is_none() {
                let joined = [only.factor.as_str(), &label]
                    .iter()
                    .filter(|part| !part.is_empty())
                    .copied()
                    .collect::<Vec<_>>()
                    .join(" · ");
                return Ok(Wire { node: only.node, factor: joined });
            }
            let node = self.next_node(Shape::Norm, "norm", column);
            self.edge(only, node, label, term.stopped);
            Wire::plain(node)
        } else {
            let sum = self.next_node(Shape::Sum, "+", column);
            for (at, ((input, term), label)) in inputs.iter().zip(&mix.terms).zip(&factors).enumerate() {
                // The entries of a history come from one port.
                let same = |other: usize| (inputs[other].node, &inputs[other].factor, &factors[other]);
                if (0..at).any(|other| same(other) == same(at)) {
                    continue;
                }
                self.edge(input, sum, label.clone(), term.stopped);
            }
            if mix.norm.is_some() {
                let node = self.next_node(Shape::Norm, "norm", column);
                self.edge(&Wire::plain(sum), node, String::new(), false);
                Wire::plain(node)
            } else {
                Wire::plain(sum)
            }
        };
        Ok(Wire { factor: factor(&mix.scale.symbol), ..wire })
    }

    fn apply(&mut self, _: Place, sublayer: Sublayer, input: Wire) -> Result<Wire, Infallible> {
        let (shape, label) = match sublayer {
            Sublayer::Attention => (Shape::Attention, "attention"),
            Sublayer::Cross => (Shape::Attention, "cross"),
            Sublayer::FeedForward => (Shape::FeedForward, "FFN"),
        };
        let node = self.next_node(shape, label, self.branch);
        self.edge(&input, node, String::new(), false);
        Ok(Wire::plain(node))
    }

    fn gate(&mut self, _: Place, _: &str, input: Wire) -> Result<Wire, Infallible> {
        let node = self.next_node(Shape::Norm, "gate", self.branch + 1);
        self.edge(&input, node, String::new(), false);
        Ok(Wire::plain(node))
    }

    fn multiply(&mut self, _: Place, gate: Wire, value: Wire) -> Result<Wire, Infallible> {
        let node = self.next_node(Shape::Sum, "×", self.branch);
        self.edge(&value, node, String::new(), false);
        self.edge(&gate, node, String::new(), false);
        Ok(Wire::plain(node))
    }
}

impl Drawer {
    fn x(&self, column: usize) -> f64 {
        MARGIN + COLUMN * column as f64
    }

    fn y(&self, row: usize) -> f64 {
        ROW * (self.row + 2 - row) as f64 - ROW / 2.0
    }

    /// Half the height of a node, where lines end.
    fn reach(&self, node: &Node) -> f64 {
        match node.shape {
            Shape::Port => 10.0,
            Shape::Sum => 11.0,
            _ => BOX_HEIGHT / 2.0,
        }
    }

    /// Whether a node stands in the column strictly between two rows.
    fn blocked(&self, column: usize, above: usize, below: usize) -> bool {
        self.nodes.iter().any(|node| node.column == column && node.row > above && node.row < below)
    }

    fn path(&self, edge: &Edge) -> (String, f64, f64) {
        let (from, to) = (&self.nodes[edge.from], &self.nodes[edge.to]);
        let (x1, y1) = (self.x(from.column), self.y(from.row) - self.reach(from));
        let (x2, y2) = (self.x(to.column), self.y(to.row) + self.reach(to));
        if from.column == to.column {
            if !self.blocked(from.column, from.row, to.row) {
                return (format!("M{x1} {y1}V{y2}"), x1 + 5.0, (y1 + y2) / 2.0 + 4.0);
            }
            // Around the boxes between, on the outer side.
            let lane = if from.column == 0 { x1 - LANE } else { x1 + LANE };
            let (leave, arrive) = (y1 - 6.0, self.y(to.row));
            let side = if lane < x2 { x2 - self.side(to) } else { x2 + self.side(to) };
            return (format!("M{x1} {y1}V{leave}H{lane}V{arrive}H{side}"), lane + 4.0, (leave + arrive) / 2.0);
        }
        // A branch leaves just below what it enters; a sum is entered from the side.
        if to.shape == Shape::Sum || to.column < from.column {
            let arrive = self.y(to.row);
            let side = if x1 > x2 { x2 + self.side(to) } else { x2 - self.side(to) };
            if !self.blocked(from.column, from.row, to.row + 1) {
                return (format!("M{x1} {y1}V{arrive}H{side}"), (x1 + side) / 2.0 - 14.0, arrive - 5.0);
            }
            let lane = if from.column == 0 { x1 - LANE } else { x1 + LANE };
            let leave = y1 - 6.0;
            return (format!("M{x1} {y1}V{leave}H{lane}V{arrive}H{side}"), lane + 4.0, (leave + arrive) / 2.0);
        }
        let turn = y2 + (ROW - BOX_HEIGHT) / 2.0 - 2.0;
        if !self.blocked(from.column, from.row, to.row) {
            return (format!("M{x1} {y1}V{turn}H{x2}V{y2}"), (x1 + x2) / 2.0 - 14.0, turn - 5.0);
        }
        let lane = x1 + LANE;
        let leave = y1 - 6.0;
        (format!("M{x1} {y1}V{leave}H{lane}V{turn}H{x2}V{y2}"), lane + 4.0, (leave + turn) / 2.0)
    }

    fn side(&self, node: &Node) -> f64 {
        match node.shape {
            Shape::Port | Shape::Sum => 11.0,
            _ => BOX_WIDTH / 2.0,
        }
    }

    fn svg(&self, title: &str) -> String {
        let columns = self.nodes.iter().map(|node| node.column).max().unwrap_or(0);
        let width = self.x(columns) + MARGIN;
        let height = ROW * (self.row + 2) as f64;
        let mut svg = format!(
            concat!(
                r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" "#,
                r#"aria-label="{t}" font-family="system-ui, sans-serif" font-size="12">"#
            ),
            w = width,
            h = height,
            t = escape(title)
        );
        let ink = "var(--diagram-ink, #333)";
        // Ids are unique in a page of many diagrams.
        let id = title
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        let _ = write!(
            svg,
            r#"<defs><marker id="arrow-{id:x}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{ink}"/></marker></defs>"#
        );
        for edge in &self.edges {
            let (path, x, y) = self.path(edge);
            let dash = if edge.stopped { r#" stroke-dasharray="4 3""# } else { "" };
            let _ = write!(
                svg,
                r#"<path d="{path}" fill="none" stroke="{ink}" stroke-width="1.4"{dash} marker-end="url(#arrow-{id:x})"/>"#
            );
            if !edge.label.is_empty() {
                let label = escape(&edge.label);
                let _ = write!(svg, r#"<text x="{x}" y="{y}" fill="{ink}" font-size="11">{label}</text>"#);
            }
        }
        for node in &self.nodes {
            let (x, y) = (self.x(node.column), self.y(node.row));
            let label = escape(&node.label);
            match node.shape {
                Shape::Port => {
                    let _ = write!(
                        svg,
                        r#"<text x="{x}" y="{}" text-anchor="middle" font-style="italic" fill="{ink}">{label}</text>"#,
                        y + 4.0
                    );
                }
                Shape::Sum => {
                    let _ = write!(
                        svg,
                        r#"<circle cx="{x}" cy="{y}" r="9" fill="var(--diagram-paper, #fff)" stroke="{ink}" stroke-width="1.4"/><text x="{x}" y="{}" text-anchor="middle" fill="{ink}">{label}</text>"#,
                        y + 4.5
                    );
                }
                shape => {
                    let fill = match shape {
                        Shape::Norm => "var(--diagram-norm, #f6e7b4)",
                        Shape::Attention => "var(--diagram-attention, #f8d3c5)",
                        _ => "var(--diagram-ffn, #c9e2f5)",
                    };
                    let _ = write!(
                        svg,
                        r#"<rect x="{}" y="{}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5" fill="{fill}" stroke="{ink}" stroke-width="1.2"/><text x="{x}" y="{}" text-anchor="middle" fill="var(--diagram-text, #222)">{label}</text>"#,
                        x - BOX_WIDTH / 2.0,
                        y - BOX_HEIGHT / 2.0,
                        y + 4.0
                    );
                }
            }
        }
        svg.push_str("</svg>");
        svg
    }
}

/// Text as it may stand in XML and HTML, in attributes too.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
