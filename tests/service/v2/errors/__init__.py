"""Every condition under which Triton answers an error, provoked here or elsewhere, or why it cannot occur.

Answers are ``{"error": ...}``. Where Triton answers 500 to a client's fault, ours is 400.

=====================================================  =========  ==================================================
condition                                              status     provoked in
=====================================================  =========  ==================================================
not live                                               none       a process that is not live does not answer
not ready                                              503        test_503
ready, while the server is stopping                    503        test_stopping
model loaded, but its instance unhealthy               --         a session has no state: it was loaded, or it was not
unknown model or version, on any route                 404        test_404_501
a version that is being loaded, or failed to           503        test_503
any request while models are being loaded              503        test_503
JSON malformed, or of wrong types                      400        test_400_request
count or nesting of data unlike the shape, overflow    400        test_400_request, test_400_bytes
FP16 and BF16 in JSON                                  --         taken, and rounded to the nearest
datatype, shape, batch, inputs, outputs                400        test_400_request
bytes unlike what the JSON says of them                400        test_400_bytes
body too long, also once it is inflated                400        test_400_bytes, ../test_codec
queue full                                             503        ../test_schedule
deadline passed in the queue (Triton: 503)             504        ../test_schedule
request cancelled                                      none       nobody listens
server stopping: what is not finished in time          503        test_stopping
load of what is not in the repository                  404        test_404_501
load, with a wrong configuration or broken file        400        test_400_control, test_503
load or unload where it is not allowed                 503        test_503
unknown Content-Encoding                               501        test_404_501
decoupled model                                        --         no ONNX graph is one; a load that asks for it: 400
restricted API                                         --         control is off unless a setting allows it: 503
unknown URL, method not allowed                        404, 405   test_404_501, ../../http/test_paths
anything unexpected                                    500        tests/service/native/test_errors.py, of both faces
=====================================================  =========  ==================================================
"""
