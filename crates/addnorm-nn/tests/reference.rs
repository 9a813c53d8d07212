//! Every scheme against an independent float64 implementation: plain loops, written from the papers'
//! equations, that share no code with the interpreter.

use std::collections::BTreeMap;

use addnorm_nn::*;
use addnorm_scheme::{Scheme, library};

type Rows = Vec<Vec<f64>>;

struct Reference {
    values: BTreeMap<String, Vec<f64>>,
    width: usize,
    heads: usize,
    kv_heads: usize,
    blocks: usize,
}

fn combine(terms: &[(f64, &Rows)]) -> Rows {
    let mut sum = vec![vec![0.0; terms[0].1[0].len()]; terms[0].1.len()];
    for (weight, rows) in terms {
        for (sum, row) in sum.iter_mut().zip(*rows) {
            for (sum, x) in sum.iter_mut().zip(row) {
                *sum += weight * x;
            }
        }
    }
    sum
}

fn add(a: &Rows, b: &Rows) -> Rows {
    combine(&[(1.0, a), (1.0, b)])
}

/// x Φ(x), with Φ as the integral of the normal density by Simpson's rule: exact to 1e-13 here.
fn gelu(x: f64) -> f64 {
    let n = 400;
    let h = x / f64::from(n);
    let density = |t: f64| (-0.5 * t * t).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let part = |i: i32| {
        let a = f64::from(i) * h;
        (density(a) + 4.0 * density(a + h / 2.0) + density(a + h)) * h / 6.0
    };
    x * (0.5 + (0..n).map(part).sum::<f64>())
}

impl Reference {
    fn norm_row(&self, name: &str, row: &[f64]) -> Vec<f64> {
        let gain = &self.values[&format!("{name}.gain")];
        let bias = &self.values[&format!("{name}.bias")];
        let mean = row.iter().sum::<f64>() / row.len() as f64;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / row.len() as f64;
        let root = (variance + 1e-5).sqrt();
        row.iter().enumerate().map(|(i, x)| gain[i] * (x - mean) / root + bias[i]).collect()
    }

    fn norm(&self, name: &str, rows: &Rows) -> Rows {
        rows.iter().map(|row| self.norm_row(name, row)).collect()
    }

    fn linear(&self, weight: &str, bias: &str, rows: &Rows) -> Rows {
        let (w, b) = (&self.values[weight], &self.values[bias]);
        let n = b.len();
        let dot = |row: &[f64], j: usize| row.iter().enumerate().map(|(i, x)| x * w[i * n + j]).sum::<f64>();
        rows.iter().map(|row| (0..n).map(|j| b[j] + dot(row, j)).collect()).collect()
    }

    fn attention(&self, block: usize, x: &Rows) -> Rows {
        let p = format!("blocks.{block}.attn");
        let head = self.width / self.heads;
        let project = |kind: &str, norm: &str| -> Rows {
            let rows = self.linear(&format!("{p}.w{kind}"), &format!("{p}.b{kind}"), x);
            if !self.values.contains_key(&format!("{p}.{norm}.gain")) {
                return rows;
            }
            let normed = |row: &Vec<f64>| {
                row.chunks(head).flat_map(|part| self.norm_row(&format!("{p}.{norm}"), part)).collect()
            };
            rows.iter().map(normed).collect()
        };
        let (q, k, v) = (project("q", "query_norm"), project("k", "key_norm"), project("v", "value_norm"));
        let mut y = vec![vec![0.0; self.width]; x.len()];
        for h in 0..self.heads {
            let g = h * self.kv_heads / self.heads;
            for i in 0..x.len() {
                let dot = |j: usize| (0..head).map(|c| q[i][h * head + c] * k[j][g * head + c]).sum::<f64>();
                let powers: Vec<f64> = (0..=i).map(|j| (dot(j) / (head as f64).sqrt()).exp()).collect();
                let total: f64 = powers.iter().sum();
                let scale = self.values.get(&format!("{p}.head_scale")).map_or(1.0, |scale| scale[h]);
                for c in 0..head {
                    y[i][h * head + c] = scale * (0..=i).map(|j| powers[j] / total * v[j][g * head + c]).sum::<f64>();
                }
            }
        }
        if self.values.contains_key(&format!("{p}.inner_norm.gain")) {
            y = self.norm(&format!("{p}.inner_norm"), &y);
        }
        self.linear(&format!("{p}.wo"), &format!("{p}.bo"), &y)
    }

    fn ffn(&self, block: usize, x: &Rows) -> Rows {
        let p = format!("blocks.{block}.ffn");
        let mut hidden = self.linear(&format!("{p}.w1"), &format!("{p}.b1"), x);
        hidden.iter_mut().flatten().for_each(|x| *x = gelu(*x));
        if self.values.contains_key(&format!("{p}.inner_norm.gain")) {
            hidden = self.norm(&format!("{p}.inner_norm"), &hidden);
        }
        self.linear(&format!("{p}.w2"), &format!("{p}.b2"), &hidden)
    }

    fn sublayer(&self, block: usize, name: &str, x: &Rows) -> Rows {
        if name == "attn" { self.attention(block, x) } else { self.ffn(block, x) }
    }

    /// What the head reads, from the embedding, by the paper of the scheme.
    fn run(&self, scheme: &str, embedding: &Rows) -> Rows {
        let depth = self.blocks as f64;
        let mut x = embedding.clone();
        let mut second = embedding.clone();
        for block in 1..=self.blocks {
            let l = block as f64;
            let norm = |name: String, rows: &Rows| self.norm(&format!("blocks.{block}.{name}"), rows);
            for s in ["attn", "ffn"] {
                let f = |rows: &Rows| self.sublayer(block, s, rows);
                let input = |x: &Rows| norm(format!("{s}.input_norm"), x);
                let output = |x: &Rows| norm(format!("{s}.output_norm"), x);
                let residual = |x: &Rows| norm(format!("{s}.residual_norm"), x);
                let is_post_block = l <= (depth / 4.0).round();
                x = match scheme {
                    "plain" => output(&f(&x)),
                    "post" => residual(&add(&x, &f(&x))),
                    "deepnorm" => residual(&combine(&[((2.0 * depth).powf(0.25), &x), (1.0, &f(&x))])),
                    "pre" | "sub-ln" => add(&x, &f(&input(&x))),
                    "lns" => add(&x, &f(&combine(&[(1.0 / l.sqrt(), &input(&x))]))),
                    "mix-ln" if is_post_block => residual(&add(&x, &f(&x))),
                    "mix-ln" => add(&x, &f(&input(&x))),
                    "sandwich" | "peri" => add(&x, &output(&f(&input(&x)))),
                    "pre-gpas" => {
                        let g = self.values[&format!("blocks.{block}.learned.g")][0];
                        let x = add(&x, &f(&input(&x)));
                        combine(&[(1.0 - g / (1.0 + (-g).exp()), &x)])
                    }
                    "keel" if block == 1 && s == "attn" => add(&x, &f(&input(&x))),
                    "keel" if block == 1 => residual(&add(&x, &f(&input(&x)))),
                    "keel" => residual(&combine(&[(2.0 * depth, &x), (1.0, &f(&input(&x)))])),
                    "residual" => {
                        let out = f(&x);
                        second = add(&second, &out);
                        residual(&add(&x, &out))
                    }
                    "siamese" => {
                        let out = f(&add(&x, &norm(format!("{s}.y_norm"), &second)));
                        second = add(&second, &out);
                        residual(&combine(&[(1.0, &x), (1.0 / (l + 1.0).sqrt(), &out)]))
                    }
                    "normformer" if s == "attn" => add(&x, &output(&f(&input(&x)))),
                    "normformer" => {
                        let lambda = &self.values[&format!("blocks.{block}.learned.lambda")];
                        let scale = |row: &Vec<f64>| row.iter().zip(lambda).map(|(x, l)| x * l).collect();
                        add(&x.iter().map(scale).collect(), &f(&input(&x)))
                    }
                    "hybridnorm" if s == "attn" => norm("attn.norm".into(), &add(&x, &f(&x))),
                    "hybridnorm" => add(&x, &f(&x)),
                    "parallel" if s == "attn" => {
                        let n = norm("norm".into(), &x);
                        add(&add(&x, &f(&n)), &self.ffn(block, &n))
                    }
                    "parallel" => x,
                    other => panic!("write the reference of '{other}' from its paper"),
                };
            }
        }
        match scheme {
            "plain" | "post" | "deepnorm" | "keel" => x,
            "residual" => add(&x, &self.norm("head.r_norm", &second)),
            "siamese" => add(&x, &self.norm("head.y_norm", &second)),
            _ => self.norm("head.norm", &x),
        }
    }
}

#[test]
fn every_scheme_computes_its_papers_equations() {
    let device = device("flex").unwrap();
    for (name, text) in library() {
        let scheme = Scheme::parse(name, text).unwrap();
        let config = ModelConfig {
            blocks: 5,
            width: 12,
            heads: 4,
            kv_heads: 2,
            ffn_width: 20,
            context: 6,
            vocabulary: 9,
            init_std: 0.3,
            ..ModelConfig::default()
        };
        let model = Model::new(&scheme, &config).unwrap();
        let mut weights = model.initialise(3, &device, DType::F64);
        for (at, (weight, info)) in weights.0.iter_mut().zip(model.parameters()).enumerate() {
            if info.shape.len() == 1 {
                let values = weight.to_values();
                let moved =
                    values.iter().enumerate().map(|(i, w)| w + 0.3 * ((i * 7 + at * 13) as f64).sin()).collect();
                *weight = Weight::from_values(moved, &info.shape, &device, DType::F64);
            }
        }
        let numbers = [3u32, 1, 8, 0, 3, 5];
        let tokens = Tokens { numbers: numbers.into(), shape: [1, 6] };
        let logits = model.logits(&weights, &tokens, ForwardOptions::default(), &mut NoObserver);
        let found = statistics::to_f64(&logits);

        let named = model.parameters().iter().zip(&weights.0);
        let values: BTreeMap<String, Vec<f64>> =
            named.map(|(info, weight)| (info.name.clone(), weight.to_values())).collect();
        let row = |table: &str, at: usize| values[table][at * 12..][..12].to_vec();
        let place = |(at, &token): (usize, &u32)| -> Vec<f64> {
            row("embedding", token as usize).iter().zip(row("positions", at)).map(|(e, p)| e + p).collect()
        };
        let embedding: Rows = numbers.iter().enumerate().map(place).collect();
        let head: Rows = (0..9).map(|token| row("head", token)).collect();
        let reference = Reference { values: values.clone(), width: 12, heads: 4, kv_heads: 2, blocks: 5 };
        let result = reference.run(name, &embedding);
        let dot = |x: &[f64], head: &[f64]| x.iter().zip(head).map(|(x, h)| x * h).sum::<f64>();
        let expected: Vec<f64> = result.iter().flat_map(|x| head.iter().map(|head| dot(x, head))).collect();
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-9, "{name}: {found} and {expected}");
        }
    }
}
