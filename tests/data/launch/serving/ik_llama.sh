nohup ~/ik_llama.cpp/build/bin/llama-server -m model.gguf -mla 3 -fa -amb 512 -fmoe -ngl 63 -ot exps=CPU -c 32768 &
