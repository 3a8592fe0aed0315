//! A dense product as the library describes it.

use super::MAX_WORKSPACE;
use crate::artifact::Request;
use crate::artifact::manifest::{Element, Role};
use crate::runtime::Expected;
use cudarc::cublaslt::sys;
use oxide_infer::Contract;

/// Bytes that every operand's address is a multiple of, as for artifacts.
pub(super) const ALIGNMENT: u32 = 16;
/// As the library's documentation asks for.
pub(super) const WORKSPACE_ALIGNMENT: u64 = 256;
/// The name by which the workspace is bound.
pub(super) const WORKSPACE: &str = "workspace";
/// Extents and strides stay in what the library's kernels count with.
const LARGEST: u64 = i32::MAX as u64;

/// `CUBLAS_OP_N` and `CUBLAS_OP_T`, which the bindings have with another library.
const AS_IT_IS: u32 = 0;
const TRANSPOSED: u32 = 1;

/// `output[m, n] = Σ_k input[m, k] · weight[n, k] + bias[n] + residual[m, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Product {
    pub(super) m: u64,
    pub(super) n: u64,
    pub(super) k: u64,
    /// Of input and weight.
    pub(super) operand: Element,
    pub(super) output: Element,
    /// Of the output's type.
    pub(super) bias: Part,
    /// Of the output's type.
    pub(super) residual: Part,
}

/// Whether a product has an optional operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Absent,
    Present,
}

/// A matrix in the library's order: columns one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Matrix {
    pub(super) data_type: u32,
    pub(super) rows: u64,
    pub(super) columns: u64,
    /// Elements between the beginnings of columns.
    pub(super) leading: i64,
}

impl Product {
    /// The product that a request asks for, or why the library does not compute it.
    pub(super) fn of(request: &Request) -> Result<Self, String> {
        let contract = Contract::DENSE;
        if (request.contract(), request.version()) != (contract.name(), contract.version()) {
            return Err(format!("it has {contract} alone"));
        }
        let known = ["input", "weight", "output", "bias", "residual"];
        if let Some((name, value)) =
            request.properties().iter().find(|(name, _)| !known.contains(&name.as_str()))
        {
            return Err(format!("it has no {name}={value}"));
        }
        let property =
            |name: &str| request.properties().get(name).map(ToString::to_string).unwrap_or_default();
        let [input, weight, output] = ["input", "weight", "output"].map(property);
        let (operand, out) = match (&*input, &*weight, &*output) {
            ("bf16", "bf16", "bf16") => (Element::Bf16, Element::Bf16),
            ("bf16", "bf16", "f32") => (Element::Bf16, Element::F32),
            ("f16", "f16", "f16") => (Element::F16, Element::F16),
            ("f16", "f16", "f32") => (Element::F16, Element::F32),
            ("f32", "f32", "f32") => (Element::F32, Element::F32),
            _ => {
                return Err(format!(
                    "input={input} weight={weight} output={output}: input and weight must be of one floating-point type, and the output of that or f32"
                ));
            }
        };
        let bias = match property("bias") {
            bias if bias == "absent" => Part::Absent,
            bias if bias == output => Part::Present,
            bias => {
                return Err(format!(
                    "bias must be absent or of the output's type {output}, asked for {bias}"
                ));
            }
        };
        let residual = match &*property("residual") {
            "absent" => Part::Absent,
            "present" => Part::Present,
            other => return Err(format!("residual must be absent or present, asked for {other}")),
        };
        let [m, n, k] = sizes(request)?;
        Ok(Self { m, n, k, operand, output: out, bias, residual })
    }

    /// The weight, which the library transposes: row-major `[n, k]` is column-major `[k, n]`.
    pub(super) fn a(&self) -> Matrix {
        Matrix { data_type: data_type(self.operand), rows: self.k, columns: self.n, leading: self.k as i64 }
    }

    /// The input: row-major `[m, k]` is column-major `[k, m]`.
    pub(super) fn b(&self) -> Matrix {
        Matrix { data_type: data_type(self.operand), rows: self.k, columns: self.m, leading: self.k as i64 }
    }

    /// The output, and the residual: row-major `[m, n]` is column-major `[n, m]`, so a bias of each row is one of each feature.
    pub(super) fn d(&self) -> Matrix {
        Matrix { data_type: data_type(self.output), rows: self.n, columns: self.m, leading: self.n as i64 }
    }

    /// Attributes of the operation, which need no address.
    pub(super) fn attributes(&self) -> [(sys::cublasLtMatmulDescAttributes_t, u32); 3] {
        use sys::cublasLtMatmulDescAttributes_t as A;
        let epilogue = match self.bias {
            Part::Absent => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT,
            Part::Present => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
        };
        [
            (A::CUBLASLT_MATMUL_DESC_TRANSA, TRANSPOSED),
            (A::CUBLASLT_MATMUL_DESC_TRANSB, AS_IT_IS),
            (A::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue as u32),
        ]
    }

    /// What algorithms are admitted.
    pub(super) fn preferences() -> [(sys::cublasLtMatmulPreferenceAttributes_t, u32); 5] {
        use sys::cublasLtMatmulPreferenceAttributes_t as P;
        // Shares of a split k are added in f32, so that a result is rounded once, as the contract says.
        let reduction = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
        [
            (P::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction as u32),
            (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, ALIGNMENT),
            (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, ALIGNMENT),
            (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, ALIGNMENT),
            (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, ALIGNMENT),
        ]
    }

    /// What the residual is multiplied by; without one, the output's old content.
    pub(super) fn beta(&self) -> f32 {
        match self.residual {
            Part::Absent => 0.0,
            Part::Present => 1.0,
        }
    }

    /// What its regions must be.
    pub(super) fn operands(&self, workspace: u64) -> Vec<Expected<'static>> {
        let Self { m, n, k, .. } = *self;
        let one = |name, role, element: Element, elements: u64| Expected {
            name,
            role,
            element,
            // Sizes are under 2^31 each, so that products of two of them and a size are under 2^64.
            bytes: elements * u64::from(element.size()),
            alignment: ALIGNMENT.into(),
            writes: false,
            same_as: None,
        };
        let mut operands = vec![
            one("input", Role::Operand, self.operand, m * k),
            one("weight", Role::Operand, self.operand, n * k),
        ];
        if self.bias == Part::Present {
            operands.push(one("bias", Role::Operand, self.output, n));
        }
        let mut same_as = None;
        if self.residual == Part::Present {
            operands.push(one("residual", Role::Operand, self.output, m * n));
            same_as = Some("residual");
        }
        operands.push(Expected { writes: true, same_as, ..one("output", Role::Operand, self.output, m * n) });
        if workspace > 0 {
            let region = one(WORKSPACE, Role::Workspace, Element::U8, workspace);
            operands.push(Expected { writes: true, alignment: WORKSPACE_ALIGNMENT, ..region });
        }
        operands
    }
}

/// `CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES`, which takes 8 bytes.
pub(super) fn workspace_preference() -> (sys::cublasLtMatmulPreferenceAttributes_t, u64) {
    (sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, MAX_WORKSPACE)
}

fn sizes(request: &Request) -> Result<[u64; 3], String> {
    let names = ["m", "n", "k"];
    if let Some(name) = request.dimensions().keys().find(|name| !names.contains(&name.as_str())) {
        return Err(format!("it has no dimension {name}"));
    }
    let mut sizes = [0; 3];
    for (size, name) in sizes.iter_mut().zip(names) {
        let value = request.dimensions().get(name).copied();
        *size = value.filter(|value| (1..=LARGEST).contains(value)).ok_or_else(|| {
            let got = value.map_or("nothing".to_owned(), |value| value.to_string());
            format!("{name} must be 1 to {LARGEST}, got {got}")
        })?;
    }
    Ok(sizes)
}

/// `cudaDataType_t` of the types that products have.
fn data_type(element: Element) -> u32 {
    use sys::cudaDataType_t as T;
    let data_type = match element {
        Element::Bf16 => T::CUDA_R_16BF,
        Element::F16 => T::CUDA_R_16F,
        _ => T::CUDA_R_32F,
    };
    data_type as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxide_infer::gemm::dense::{Config, Spec};
    use oxide_infer::{DType, Presence, WeightFormat};

    fn config(input: DType, output: DType) -> Config {
        let (weight, residual) = (WeightFormat::Dense(input), Presence::Absent);
        Config { input, weight, output, n: 24, k: 40, bias: None, residual }
    }

    fn request(config: Config) -> Request {
        Request::from(&Spec::new(config).unwrap()).dimension("m", 3)
    }

    fn of(config: Config) -> Result<Product, String> {
        Product::of(&request(config))
    }

    #[test]
    fn row_major_operands_are_described_column_major_with_the_weight_transposed() {
        let product = of(config(DType::BF16, DType::F32)).unwrap();
        // cudaDataType_t in library_types.h: CUDA_R_32F 0, CUDA_R_16F 2, CUDA_R_16BF 14.
        assert_eq!(product.a(), Matrix { data_type: 14, rows: 40, columns: 24, leading: 40 });
        assert_eq!(product.b(), Matrix { data_type: 14, rows: 40, columns: 3, leading: 40 });
        assert_eq!(product.d(), Matrix { data_type: 0, rows: 24, columns: 3, leading: 24 });
        // cublasLt.h: TRANSA 3, TRANSB 4, EPILOGUE 7; CUBLAS_OP_T 1, CUBLAS_OP_N 0; EPILOGUE_DEFAULT 1.
        assert_eq!(product.attributes().map(|(name, value)| (name as u32, value)), [(3, 1), (4, 0), (7, 1)]);
        assert_eq!(product.beta(), 0.0);
        let f16 = of(config(DType::F16, DType::F16)).unwrap();
        assert_eq!([f16.a(), f16.b(), f16.d()].map(|matrix| matrix.data_type), [2, 2, 2]);
    }

    #[test]
    fn only_reductions_that_round_once_and_alignments_that_are_checked_are_asked_for() {
        let values = Product::preferences().map(|(name, value)| (name as u32, value));
        assert_eq!(values, [(3, 2), (5, 16), (6, 16), (7, 16), (8, 16)]);
        let (name, bytes) = workspace_preference();
        assert_eq!((name as u32, bytes), (1, 33_554_432));
    }

    #[test]
    fn bias_is_an_epilogue_and_a_residual_is_added_once() {
        let with = Config {
            bias: Some(DType::BF16),
            residual: Presence::Present,
            ..config(DType::BF16, DType::BF16)
        };
        let product = of(with).unwrap();
        assert_eq!(product.attributes()[2].1, 4, "CUBLASLT_EPILOGUE_BIAS");
        assert_eq!(product.beta(), 1.0);
        let operands = product.operands(1000);
        let shown: Vec<_> =
            operands.iter().map(|o| (o.name, o.bytes, o.alignment, o.writes, o.same_as)).collect();
        assert_eq!(
            shown,
            [
                ("input", 240, 16, false, None),
                ("weight", 1920, 16, false, None),
                ("bias", 48, 16, false, None),
                ("residual", 144, 16, false, None),
                ("output", 144, 16, true, Some("residual")),
                ("workspace", 1000, 256, true, None),
            ]
        );
    }

    #[test]
    fn what_the_library_does_not_compute_is_named_with_what_it_does() {
        let refused = |request: Request| Product::of(&request).unwrap_err();
        let plain = || request(config(DType::BF16, DType::BF16));
        assert_eq!(refused(plain().dimension("m", 0)), "m must be 1 to 2147483647, got 0");
        assert_eq!(refused(plain().dimension("k", 1 << 31)), "k must be 1 to 2147483647, got 2147483648");
        assert_eq!(refused(plain().dimension("splits", 2)), "it has no dimension splits");
        assert_eq!(refused(plain().property("activation", "swiglu")), "it has no activation=swiglu");
        assert_eq!(refused(Request::new("gemm.dense", 2)), "it has gemm.dense v1 alone");
        let spec = Spec::new(config(DType::BF16, DType::BF16)).unwrap();
        assert_eq!(refused(Request::from(&spec)), "m must be 1 to 2147483647, got nothing");
        let bias = Config { bias: Some(DType::F32), ..config(DType::BF16, DType::BF16) };
        assert_eq!(of(bias).unwrap_err(), "bias must be absent or of the output's type bf16, asked for f32");
        let mixed = Config { input: DType::F32, ..config(DType::BF16, DType::F32) };
        assert!(of(mixed).unwrap_err().starts_with("input=f32 weight=bf16 output=f32: "));
        assert!(of(config(DType::F32, DType::BF16)).is_err());
    }
}
