"""A pretend accelerator: its tensors compute on the CPU, refuse to meet tensors of the CPU, and count waits."""
from collections import Counter
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME="far"
WAITS={"aten._local_scalar_dense.default","aten.nonzero.default","aten.equal.default","aten.is_nonzero.default","aten.masked_select.default","aten._unique2.default","aten.unique_dim.default","aten.unique_consecutive.default"}

class FarTensor(torch.Tensor):
    @staticmethod
    def __new__(cls, near):
        r=torch.Tensor._make_wrapper_subclass(cls, near.size(), strides=near.stride(), storage_offset=near.storage_offset(), dtype=near.dtype, layout=near.layout, device=torch.device(NAME,0), requires_grad=False)
        r.near=near
        return r
    __torch_function__ = torch._C._disabled_torch_function_impl
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func,args,kwargs or {})
    @property
    def data(self):
        return FarTensor(self.near.detach())
    @data.setter
    def data(self, value):
        self.near = value.near
    def __repr__(self): return f"Far({self.near!r})"

current=None
def is_far(d): return d is not None and torch.device(d).type==NAME
def run(func,args,kwargs):
    name=str(func)
    flat,_=pytree.tree_flatten((args,kwargs))
    tensors=[t for t in flat if isinstance(t,torch.Tensor)]
    far=[t for t in tensors if isinstance(t,FarTensor)]
    unwrap=lambda tree: pytree.tree_map_only(FarTensor,lambda t:t.near,tree)
    kw=dict(kwargs); target=None
    if "device" in kw and kw["device"] is not None:
        target=torch.device(kw["device"]); kw["device"]=torch.device("cpu")
    if name=="aten._to_copy.default":
        src=isinstance(args[0],FarTensor)
        dst=is_far(target) if target is not None else src
        if src and not dst and current: current.waits["to cpu"]+=1
        if dst and not src and current and not kw.get("non_blocking"): current.waits["to far"]+=1
        out=func(*unwrap(args),**unwrap(kw))
        return FarTensor(out.clone() if out is unwrap(args)[0] else out) if dst else out
    if name=="aten.copy_.default":
        a,b=args[0],args[1]
        if isinstance(b,FarTensor) and not isinstance(a,FarTensor) and current: current.waits["copy to cpu"]+=1
        func(*unwrap(args),**unwrap(kw)); return a
    if far:
        mixed=[t for t in tensors if not isinstance(t,FarTensor) and t.dim()>0]
        if mixed: raise RuntimeError(f"{name}: tensors on {NAME} and on the CPU meet: {[tuple(t.shape) for t in mixed]}")
    if current and (far):
        current.ops[name]+=1
        if name in WAITS: current.waits[name]+=1
        if name in ("aten.index.Tensor","aten.index_put.default","aten.index_put_.default","aten._index_put_impl_.default"):
            if any(isinstance(i,FarTensor) and i.dtype in (torch.bool,torch.uint8) for i in args[1]): current.waits[name+" by mask"]+=1
        if name.startswith("aten.repeat_interleave.Tensor"): current.waits[name]+=1
    out=func(*unwrap(args),**unwrap(kw))
    if not far and not is_far(target): return out
    inputs={id(t.near):t for t in far}
    def wrap(t):
        return inputs.get(id(t)) if id(t) in inputs else FarTensor(t)
    # in-place on wrappers returns same object
    return pytree.tree_map_only(torch.Tensor,wrap,out)

class FarDevice(TorchDispatchMode):
    def __init__(self): super().__init__(); self.waits=Counter(); self.ops=Counter()
    def __enter__(self):
        global current; current=self; return super().__enter__()
    def __exit__(self,*a):
        global current; current=None; return super().__exit__(*a)
    def __torch_dispatch__(self,func,types,args=(),kwargs=None):
        return run(func,args,kwargs or {})
class Factories(TorchFunctionMode):
    """``torch.tensor(..., device="far")`` is no operator."""
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor, torch.asarray) and is_far(kwargs.get("device")):
            device = kwargs.pop("device")
            if current: current.waits["torch.tensor"] += 1
            return func(*args, **kwargs).to(device, non_blocking=True)
        return func(*args, **kwargs)

class Backend(_DummyBackendModule):
    """What autocast asks for."""
    def get_amp_supported_dtype(self): return [torch.bfloat16]
    def current_device(self): return 0

def register():
    _setup_privateuseone_for_python_backend(NAME, backend_module=Backend())
