"""What kernels of each library do, by their names."""

from __future__ import annotations

import pytest

from perfd.trace.model.hlo_names import hlo_class
from perfd.trace.model.kernel_classes import collective_operation, kernel_class, uses_tensor_cores

_NAMES = {
    "cuBLAS": {
        "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nt": "matmul",
        "nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_NNT": "matmul",
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false, false>": "matmul",
        "void gemvNSP_kernel<__nv_bfloat16, __nv_bfloat16>": "matmul",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>": "matmul",
        "volta_sgemm_128x64_nn": "matmul",
        "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64": "matmul",
    },
    "CUTLASS": {
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x64_nn_align8>": "matmul",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(T1::Params)": "matmul",
        "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90>>": "attention",
        "void cutlass::Kernel<cutlass::conv::kernel::ImplicitGemmConvolution<...>>": "convolution",
        "cutlass_tensorop_s1688wgrad_optimized_tf32_128x128_16x4": "convolution",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<...>>": "matmul",
        "void cutlass::device_kernel<cutlass::fmha::kernel::FmhaKernel>": "attention",
    },
    "cuDNN": {
        "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_35_16x128x128": "attention",
        "void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>": "normalization",
        "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>": "normalization",
        "maxwell_scudnn_128x64_relu_small_nn_v1": "convolution",
        "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1": "convolution",
        "void cudnn::cnn::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>": "convolution",
        "void cudnn::cnn::wgrad_alg0_engine<float, 128, 5, 5, 3, 3, 3, false, 512>": "convolution",
        "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false>": "convolution",
        "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc": "convolution",
        "sm90_xmma_dgrad_implicit_gemm_indexed_bf16": "convolution",
        "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false>": "copy",
    },
    "FBGEMM": {
        "permute_1D_lengths_kernel": "embedding",
        "permute_multi_embs_kernel": "embedding",
        "split_embedding_codegen_forward_unweighted_kernel<float>": "embedding",
        "void fbgemm_gpu::permute_2D_sparse_data_kernel<long>": "embedding",
        "void fbgemm_gpu::permute_pooled_embs_kernel<float>": "embedding",
        "split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_warp_per_row_1": "embedding",
    },
    "FlashInfer": {
        "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>": "normalization",
        "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>": "normalization",
        "void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &silu>": "elementwise",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0>": "attention",
        "void flashinfer::BatchPrefillWithRaggedKVCacheKernel<...>": "attention",
        "void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel<true, 128u, 8u>": "elementwise",
        "void flashinfer::AppendPagedKVCacheKernel<128u, 8u>": "copy",
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u>": "sampling",
    },
    "vLLM": {
        "void vllm::rms_norm_kernel<c10::BFloat16>": "normalization",
        "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>": "normalization",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>": "elementwise",
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16>": "copy",
        "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel>": "elementwise",
        "void vllm::paged_attention_v2_kernel<__nv_bfloat16>": "attention",
        "void marlin::Marlin<__nv_bfloat16, 4, 256, 1, 8, 8>": "matmul",
        "fused_moe_kernel": "matmul",
        "void vllm::moe::topkGatingSoftmax<8, 128, 4, 16, 32>": "softmax",
        "void vllm::dynamic_scaled_fp8_quant_kernel<c10::BFloat16>": "elementwise",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>": "communication",
    },
    "SGLang": {
        "_fwd_grouped_kernel_stage1": "attention",
        "_fwd_kernel_stage2": "attention",
        "void per_token_group_quant_8bit_kernel<c10::BFloat16, __nv_fp8_e4m3>": "elementwise",
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 4096u>": "matmul",
        "create_flashinfer_kv_indices_triton": "copy",
    },
    "TensorRT-LLM": {
        "bmm_E4m3_E4m3E4m3_Fp32_t128x8x512_s4_et128x8_m128x8x32": "matmul",
        "sage_fwd_kernel_sm90": "attention",
        "void tensorrt_llm::kernels::generalRmsNorm<__nv_bfloat16>": "normalization",
        "void tensorrt_llm::kernels::mmha::masked_multihead_attention_kernel<uint16_t>": "attention",
        "void tensorrt_llm::kernels::doActivationKernel<__nv_bfloat16>": "elementwise",
        "fmha_v2_flash_attention_bf16_64_128_S_qkv_128_causal_tma_ws_sm90_kernel": "attention",
    },
    "Triton": {
        "triton_poi_fused_add_gelu_3": "elementwise",
        "void at::native::distribution_elementwise_grid_stride_kernel<float, 4, "
        "at::native::templates::cuda::normal_and_transform<float, float>>": "elementwise",
        "triton_red_fused_sum_7": "reduction",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, NormTwoOps<float>>>": "reduction",
        "triton_per_fused_native_layer_norm_2": "normalization",
        "triton_tem_fused_addmm_relu_5": "matmul",
        "triton_mm": "matmul",
    },
    "MIOpen, CK, hipBLASLt": {
        "igemm_fwd_gtcx3_nhwc_fp16_bx0_ex0_bt256x128x32_wt32x32x8": "convolution",
        "void ck::kernel_grouped_conv_fwd_multiple_abd_xdl_cshuffle<...>": "convolution",
        "Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64": "matmul",
        "void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<...>>": "attention",
        "void ck::kernel_gemm_xdl_cshuffle_v3<...>": "matmul",
        "__amd_rocclr_copyBuffer": "copy",
    },
    "PyTorch and Transformer Engine": {
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>": "elementwise",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, true>": "softmax",
        "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>": "optimizer",
        "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float>": "normalization",
        "void at::native::(anonymous namespace)::indexing_backward_kernel<long>": "embedding",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>": "reduction",
        "void transformer_engine::cast_transpose_fused_kernel<...>": "elementwise",
        "void fused_rope_forward_kernel<__nv_bfloat16>": "elementwise",
        "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<float, int>": "convolution",
        "void causal_conv1d_fwd_kernel<Causal_conv1d_fwd_kernel_traits>": "convolution",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL": "communication",
        "Memcpy HtoD (Pinned -> Device)": "copy",
        "CUDA graph": "graph",
    },
}


@pytest.mark.parametrize(
    ("name", "label"), [(name, label) for names in _NAMES.values() for name, label in names.items()]
)
def test_a_kernel_is_what_it_does_and_not_where_it_is_from(name: str, label: str):
    assert kernel_class(name) == label


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("all-reduce.1", "allreduce"),
        ("all-gather-start.3", "allgather"),
        ("reduce-scatter.2", "reducescatter"),
        ("all-to-all.5", "alltoall"),
        ("collective-permute.1", "sendrecv"),
    ],
)
def test_a_collective_of_xla_is_the_same_operation_as_nccl(name: str, operation: str):
    assert collective_operation(name) == operation


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("loop_transpose_fusion", "elementwise"),
        ("input_transpose_fusion.2", "elementwise"),
        ("copy.3", "copy"),
        ("transpose.1", "copy"),
        ("all-reduce.1", "communication"),
        ("gemm_fusion_dot_general.1", "matmul"),
        ("reduce.6", "reduction"),
    ],
)
def test_a_fusion_of_xla_that_transposes_is_no_copy(name: str, label: str):
    assert hlo_class(name) == label


@pytest.mark.parametrize(
    ("name", "used"),
    [
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_ffma_aligna4_execute_kernel", False),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x128x32_stage3_tensor16x8x8", True),
        ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw", True),
        ("sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64", True),
    ],
)
def test_fp32_kernels_of_cublas_use_no_tensor_cores(name, used):
    assert uses_tensor_cores(name) is used
